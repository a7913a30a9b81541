-- One limit for many processes: `guildhall_core::limit::shared::ReferenceWindow`, inside Redis.
--
-- The functions mirror those there and do the same, in the same order: their documentation applies here. Only the
-- storage is different, so that a call does not cost more with many members and tokens.
--
-- Numbers are doubles. All of them are integers below 2^53, so they are exact as long as divisions are floored. Tokens
-- and bookings are text of one width, so that a sorted set orders tokens of the same time like numbers.

local STATE = KEYS[1]   -- hash: single values, see FIELDS
local TOKENS = KEYS[2]  -- sorted set: token -> when it is free
local HOLDERS = KEYS[3] -- hash: token -> 'booking at member', its current holder
local SEATS = KEYS[4]   -- hash: member -> 'life claim limit since'
local LIVE = KEYS[5]    -- sorted set: live member -> when it was last active
local LIMITS = KEYS[6]  -- sorted set: live member -> its limit
local AWAY = KEYS[7]    -- sorted set: detached member -> when it is removed
local QUEUE = KEYS[8]   -- sorted set: member that waits for a slot -> its ticket
local DUE = KEYS[9]     -- sorted set: member that waits for a slot -> when it should call again

-- Text first, then numbers. Those after `sequence` (the last number given to a token, a booking or a ticket) could be
-- computed each time: sums of claims, and the sizes of the other keys. `line` is for processes of an earlier version,
-- which do not know the queue; they end an epoch whose `line` is missing. `queued` is 1 if the queue is of this epoch:
-- an earlier version that starts one leaves the queue of the last.
local TEXTS = 2

-- Fields that a state of an earlier version may lack: a rolling upgrade must not start a new epoch.
local DEFAULTS = { global_block = 0, queued = 0 }
local FIELDS = {
    'name', 'server', 'born', 'last', 'whole', 'brought', 'limit', 'blocked', 'global_block', 'pace', 'line', 'average',
    'queued', 'sequence', 'claimed', 'claimed_away', 'tokens', 'holders', 'seats', 'live',
}

-- A clock that goes back by less is treated as stopped.
local BACK = 50000

-- Nothing is needed once all members would be removed. The state expires first: without it, the rest is not read.
local STATE_LASTS = 5 * 60 * 1000
local REST_LASTS = 6 * 60 * 1000

local call, max, min, floor, insert = redis.call, math.max, math.min, math.floor, table.insert

-- Arguments, in the order of `window.rs`; those of the specific command follow.

local function arg(place)
    return tonumber(ARGV[place])
end

local caller = { doing = ARGV[1], member = ARGV[2], life = ARGV[3], not_after = arg(4), server = ARGV[5] }
local news = { channel = ARGV[6], scope = ARGV[7] }
local rules = {
    limit = arg(8), window = arg(9), silence = arg(10), forget = arg(11), newcomer = arg(12), gather = arg(13),
    horizon = arg(14), grace = arg(15), guard = arg(16), hold = arg(17), burst = arg(18), retry = arg(19),
}
local ABOUT = 19

local function read_join()
    return {
        epoch = ARGV[ABOUT + 1], renew = ARGV[ABOUT + 2], held = arg(ABOUT + 3), wants_share = arg(ABOUT + 4) == 1,
        flying = arg(ABOUT + 5), cooling = arg(ABOUT + 6), untold = arg(ABOUT + 7), ready_in = arg(ABOUT + 8),
        block = arg(ABOUT + 9), global_block = arg(ABOUT + 10),
    }
end

local function read_sync()
    local sync = {
        epoch = ARGV[ABOUT + 1], held = arg(ABOUT + 2), wants_share = arg(ABOUT + 3) == 1, want = arg(ABOUT + 4),
        urgent = arg(ABOUT + 5) == 1, block = arg(ABOUT + 6), ended = {}, dead = {},
    }
    local place = ABOUT + 9
    for ended = 1, arg(ABOUT + 7) do
        -- A slot that was not used has no time since its response.
        sync.ended[ended] = { token = ARGV[place], booking = ARGV[place + 1], ago = arg(place + 2) }
        place = place + 3
    end
    for dead = 1, arg(ABOUT + 8) do
        sync.dead[dead] = ARGV[place]
        place = place + 1
    end
    return sync
end

-- State of all functions below.

local now
local epoch

local function whole_number(value)
    return string.format('%.0f', value)
end

local function less(value, by)
    return max(0, value - by)
end

local function clock()
    local time = redis.call('TIME') -- The one clock.
    return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Tokens

local function next_number()
    epoch.sequence = epoch.sequence + 1
    return string.format('%016.0f', epoch.sequence)
end

-- The token that is free after so many others, and when.
local function nth(before)
    local found = call('ZRANGE', TOKENS, before, before, 'WITHSCORES')
    return found[1], tonumber(found[2] or 0)
end

-- The token that is free first, and when.
local function first()
    return nth(0)
end

local function is_held(token)
    return call('HEXISTS', HOLDERS, token) == 1
end

local function time_of(token)
    return tonumber(call('ZSCORE', TOKENS, token) or 0)
end

-- A free token without a holder.
local function idle()
    local token, time = first()
    if token and time <= now and not is_held(token) then
        return token
    end
end

local function free_at(token, time)
    epoch.tokens = epoch.tokens + call('ZADD', TOKENS, whole_number(time), token)
end

local function make(time)
    local token = next_number()
    free_at(token, time)
    return token
end

local function remove_token(token)
    epoch.tokens = epoch.tokens - call('ZREM', TOKENS, token)
    epoch.holders = epoch.holders - call('HDEL', HOLDERS, token)
end

local function set_holder(token, booking, at, member)
    local holder = booking .. ' ' .. whole_number(at) .. ' ' .. member
    epoch.holders = epoch.holders + call('HSET', HOLDERS, token, holder)
end

local function read_holder(holder)
    local booking, at, member = string.match(holder, '^(%d+) (%d+) (.*)$')
    return booking, tonumber(at), member
end

-- Books a token for a member.
local function hold(token, member, at, time)
    local booking = next_number()
    set_holder(token, booking, at, member)
    free_at(token, time)
    return booking
end

-- Ends a member's booking if it is still current, and returns when it started.
local function release(token, member, booking)
    local holder = call('HGET', HOLDERS, token)
    if not holder then
        return nil
    end
    local held_booking, at, held_member = read_holder(holder)
    if held_member ~= member or held_booking ~= booking then
        return nil
    end
    epoch.holders = epoch.holders - call('HDEL', HOLDERS, token)
    return at
end

-- Scans all bookings: only for rare events.
local function held_by(member)
    local all = call('HGETALL', HOLDERS)
    local held = {}
    for place = 1, #all, 2 do
        local booking, at, holder = read_holder(all[place + 1])
        if holder == member then
            held[#held + 1] = { token = all[place], booking = booking, at = at }
        end
    end
    table.sort(held, function(one, other) return one.token < other.token end)
    return held
end

-- Ends all bookings of a member. Returns its tokens, ordered by when they are free.
local function release_all(member)
    local own = held_by(member)
    for _, turn in ipairs(own) do
        turn.time = max(now, turn.at)
        epoch.holders = epoch.holders - call('HDEL', HOLDERS, turn.token)
        free_at(turn.token, turn.time)
    end
    table.sort(own, function(one, other)
        return one.time < other.time or (one.time == other.time and one.token < other.token)
    end)
    local tokens = {}
    for place, turn in ipairs(own) do
        tokens[place] = turn.token
    end
    return tokens
end

-- The tokens of a dead member are free no later than `time`, and without a member until then.
local function free_held_by(member, time)
    for _, turn in ipairs(held_by(member)) do
        set_holder(turn.token, turn.booking, turn.at, '')
        if time_of(turn.token) > time then
            free_at(turn.token, time)
        end
    end
end

-- Removes up to `most` tokens that a member holds, but leaves `target`.
local function drop_held_by(member, most, target)
    for place, turn in ipairs(held_by(member)) do
        if place <= most and epoch.tokens > target then
            remove_token(turn.token)
        end
    end
end

-- Tokens without a holder are free no later than `time`.
local function free_unheld_by(time)
    for _, token in ipairs(call('ZRANGEBYSCORE', TOKENS, '(' .. whole_number(time), '+inf')) do
        if not is_held(token) then
            free_at(token, time)
        end
    end
end

-- No token is free before `time`.
local function free_not_before(time)
    for _, token in ipairs(call('ZRANGEBYSCORE', TOKENS, '-inf', '(' .. whole_number(time))) do
        free_at(token, time)
    end
end

-- Removes the tokens that are free first, or creates new ones, until there are `target`. Returns the new ones.
local function fit_tokens(target, time)
    while epoch.tokens > target do
        remove_token((first()))
    end
    local made = {}
    while epoch.tokens < target do
        made[#made + 1] = make(time)
    end
    return made
end

-- The queue of members that wait for a slot

-- Number of members before the caller.
local function ahead_of_caller()
    return call('ZRANK', QUEUE, caller.member) or call('ZCARD', QUEUE)
end

local function leave_queue(member)
    call('ZREM', QUEUE, member)
    call('ZREM', DUE, member)
end

-- Removes members that were expected before `since` and did not call: they no longer need a slot, or are gone.
local function remove_late(since)
    for _, member in ipairs(call('ZRANGEBYSCORE', DUE, '-inf', '(' .. whole_number(since))) do
        leave_queue(member)
    end
end

-- Queues the caller, which is expected at this time.
local function expect_caller(due)
    if not call('ZSCORE', QUEUE, caller.member) then
        call('ZADD', QUEUE, next_number(), caller.member)
    end
    call('ZADD', DUE, whole_number(due), caller.member)
end

-- Seats

local function seat_of(member)
    local seat = call('HGET', SEATS, member)
    if not seat then
        return nil
    end
    local life, claim, limit, since = string.match(seat, '^(%x+) (%d+) (%d+) (%d+)$')
    return { life = life, claim = tonumber(claim), limit = tonumber(limit), since = tonumber(since) }
end

local function set_seat(member, seat)
    local written = table.concat(
        { seat.life, whole_number(seat.claim), whole_number(seat.limit), whole_number(seat.since) }, ' ')
    epoch.seats = epoch.seats + call('HSET', SEATS, member, written)
end

local function is_live(member, seat)
    return seat ~= nil and seat.life == caller.life and call('ZSCORE', LIVE, member) ~= false
end

local function see(member)
    epoch.live = epoch.live + call('ZADD', LIVE, whole_number(now), member)
end

-- Creates a seat for a member that has none.
local function take(member)
    local seat = { life = caller.life, claim = 0, limit = rules.limit, since = now }
    set_seat(member, seat)
    call('ZADD', LIMITS, whole_number(seat.limit), member)
    see(member)
    return seat
end

-- Makes a detached member live again.
local function attach(member, seat)
    if call('ZREM', AWAY, member) == 1 then
        epoch.claimed_away = epoch.claimed_away - seat.claim
        call('ZADD', LIMITS, whole_number(seat.limit), member)
    end
    see(member)
end

local function remove_seat(member)
    local seat = seat_of(member)
    if not seat then
        return false
    end
    if call('ZREM', AWAY, member) == 1 then
        epoch.claimed_away = epoch.claimed_away - seat.claim
    end
    epoch.live = epoch.live - call('ZREM', LIVE, member)
    leave_queue(member)
    call('ZREM', LIMITS, member)
    epoch.seats = epoch.seats - call('HDEL', SEATS, member)
    epoch.claimed = epoch.claimed - seat.claim
    return true
end

-- Detaches members that were last active before `since`. Returns each with its claim, the longest silent first.
local function detach_silent(since, till)
    local silent = call('ZRANGEBYSCORE', LIVE, '-inf', '(' .. whole_number(since))
    local detached = {}
    for place, member in ipairs(silent) do
        local seat = seat_of(member)
        epoch.live = epoch.live - call('ZREM', LIVE, member)
        leave_queue(member)
        call('ZREM', LIMITS, member)
        call('ZADD', AWAY, whole_number(till), member)
        epoch.claimed_away = epoch.claimed_away + seat.claim
        detached[place] = { member = member, claim = seat.claim }
    end
    return detached
end

-- Removes members that were detached for too long. Returns whether there were any.
local function forget()
    if epoch.seats == epoch.live then
        return false
    end
    local gone = call('ZRANGEBYSCORE', AWAY, '-inf', whole_number(now))
    for _, member in ipairs(gone) do
        remove_seat(member)
    end
    return #gone > 0
end

-- Whether there are members that have not called since it joined, and so do not know of it. Detached members would have
-- called by now if the clock had only jumped, unless the seat is young.
local function is_strange(seat)
    local oldest = call('ZRANGE', LIVE, 0, 0, 'WITHSCORES')[2]
    local is_young = seat.since > less(now, rules.silence) and epoch.seats > epoch.live
    return tonumber(oldest or 0) < seat.since or is_young
end

-- The share that a member should have, as far as the claims of others permit.
local function fair_share(seat, limit)
    local live, away = max(epoch.live, 1), epoch.claimed_away
    local fair = floor(less(limit, away) / live)
    local others = epoch.claimed - seat.claim
    -- The remainder of the division goes to the next caller once all others have their share, so that all of it is
    -- used.
    local is_over = less(others, away) >= fair * (live - 1)
    local room = min(fair + (is_over and 1 or 0), less(limit, others))
    -- If Redis lost all data now, no other member would account for this one.
    return is_strange(seat) and min(room, seat.claim) or room
end

-- Records the share in this reply. Until the member confirms a smaller one, it may not have received it.
local function tell(member, seat, held, share)
    local claim = max(min(held, seat.claim), share)
    if claim ~= seat.claim then
        epoch.claimed = epoch.claimed + claim - seat.claim
        seat.claim = claim
        set_seat(member, seat)
    end
end

-- The epoch

local function is_whole()
    return epoch.whole == 1
end

-- What belongs to the members, detached or not.
local function common()
    return is_whole() and epoch.limit or min(epoch.brought, epoch.limit)
end

-- Desired number of tokens.
local function target()
    return less(common(), epoch.claimed_away)
end

-- Creates or removes tokens to reach the desired number; new ones are free at `time`.
local function fit(time)
    fit_tokens(target(), time)
end

-- The limit is the lowest of all members.
local function count_limit()
    local least = call('ZRANGE', LIMITS, 0, 0, 'WITHSCORES')[2]
    if least then
        epoch.limit = tonumber(least)
    end
end

-- When calls of a member that is gone can no longer arrive.
local function gone_by()
    return now + rules.window + rules.guard
end

-- Makes the epoch whole if possible. Returns in which way.
local function grow_whole()
    if is_whole() then
        return nil
    end
    local age = less(now, epoch.born)
    local grown
    if epoch.brought >= epoch.limit and age >= rules.gather then
        grown = 'together'
    elseif epoch.brought == 0 and age >= rules.newcomer then
        grown = 'newcomers'
    elseif age >= rules.forget then
        grown = 'late'
    else
        return nil
    end
    epoch.whole = 1
    return grown
end

-- Applies the passage of time: silent members are detached, those detached for long are removed, and an epoch becomes
-- whole.
local function pass_time()
    epoch.last = now
    local silent = detach_silent(less(now, rules.silence), now + rules.forget)
    local forgotten = forget()
    if #silent == 0 and not forgotten and is_whole() then
        return
    end
    count_limit()
    local leave = target()
    for _, lost in ipairs(silent) do
        -- The tokens that it holds are those that it will count as its own.
        drop_held_by(lost.member, lost.claim, leave)
    end
    local grown = grow_whole()
    if grown == 'together' then
        -- No member can still use what was booked before the epoch started, except for calls that were just sent.
        local left = epoch.born + rules.horizon + rules.grace + rules.guard
        free_unheld_by(max(now, left) + rules.window)
    elseif grown == 'newcomers' then
        fit(now)
    end
    fit(gone_by())
end

-- Records the outcomes of slots.
local function settle(ends)
    for _, slot in ipairs(ends) do
        local at = release(slot.token, caller.member, slot.booking)
        if at and slot.ago then
            local back = less(now, slot.ago) + rules.window
            epoch.average = floor((epoch.average * 15 + less(back, at)) / 16)
            free_at(slot.token, back)
        elseif at then
            -- Not before its booked time: the previous booking counts until then.
            free_at(slot.token, max(now, at))
        end
    end
end

local function block(duration)
    if duration > 0 then
        epoch.blocked = max(epoch.blocked, now + duration)
    end
end

-- A global 429.
local function block_globally(duration)
    block(duration)
    if duration > 0 then
        epoch.global_block = max(epoch.global_block, now + duration)
        -- Members with bookings must be notified now, not with their next call.
        local told = '{"kind":"block","scope":%s,"ms":%.0f,"by":%s}'
        local ms = floor((duration + 999) / 1000)
        call('PUBLISH', news.channel, told:format(cjson.encode(news.scope), ms, cjson.encode(caller.member)))
    end
end

-- Removes a member that is certainly dead: its calls can arrive for no longer than the guard.
local function bury(member)
    if remove_seat(member) then
        free_held_by(member, gone_by())
        count_limit()
        fit(gone_by())
    end
end

-- The state of a member, with its share in this reply.
local function standing(seat, held, wants_share, slots)
    local share = 0
    if wants_share then
        share = fair_share(seat, common())
    end
    tell(caller.member, seat, held, share)
    return {
        share = share, members = epoch.seats, live = epoch.live, pool = epoch.tokens,
        blocked = less(epoch.blocked, now), global_block = less(epoch.global_block, now), again = -1, slots = slots,
    }
end

-- Booking

-- When the caller should call again if it cannot have a slot now. It keeps its position in the queue until then.
local function ask_again(asks)
    if not is_whole() then
        asks = min(asks, now + rules.retry)
    end
    expect_caller(asks)
    return asks - now
end

-- When a member with so many others before it can have a slot, and whether that is certain: when a held token is
-- returned depends on its holder.
local function slot_after(ahead, spaced)
    local token, time = nth(ahead)
    if not token then
        return math.huge, false
    end
    return max(now, time, epoch.blocked, spaced), not (time > now and is_held(token))
end

local function book(sync, stands)
    if sync.want == 0 then
        return
    end
    -- If a part of the queue is missing, it has no order; the members only lose their positions.
    if epoch.queued == 0 or call('ZCARD', QUEUE) ~= call('ZCARD', DUE) then
        call('DEL', QUEUE, DUE)
        epoch.queued = 1
    end
    -- A slot is booked a horizon ahead, so waiting that long for a member that does not call wastes none.
    remove_late(less(now, rules.horizon))
    local interval = max(floor(epoch.average / max(epoch.limit, 1)), 1)
    for place = 1, sync.want do
        local is_urgent = sync.urgent and place == 1
        local token, time = first()
        if not token then
            stands.again = rules.retry
            return
        end
        local spaced = is_urgent and 0 or less(epoch.pace, less(rules.burst, 1) * interval)
        -- There must be a slot for each member that waits before it, too.
        local ahead = ahead_of_caller()
        local before = ahead * interval
        local last, is_known = slot_after(ahead, is_urgent and 0 or spaced + before)
        if last > now + rules.horizon then
            local earliest = now + interval + (is_known and 0 or before)
            local ready = max(is_known and last or 0, epoch.blocked + before)
            stands.again = ask_again(max(less(ready, rules.horizon), earliest))
            return
        end
        local at = max(now, time, epoch.blocked, spaced)
        local booking = hold(token, caller.member, at, at + rules.hold + rules.window)
        if not is_urgent then
            epoch.pace = max(epoch.pace, at) + interval
        end
        leave_queue(caller.member)
        insert(stands.slots, { token = token, booking = booking, wait = at - now })
    end
end

-- Joining

-- Finds tokens for the calls that a member has made, its own first.
local function lodge(own, flying, cooling)
    local used = 0
    local function another()
        used = used + 1
        return own[used] or idle()
    end
    local slots = {}
    local is_short = false
    for _ = 1, flying do
        local token = another()
        if not token then
            is_short = true
            break
        end
        local booking = hold(token, caller.member, now, now + rules.hold + rules.window)
        insert(slots, { token = token, booking = booking, wait = 0 })
    end
    local cooled = now + rules.window
    for _ = 1, cooling do
        local token = another()
        if not token then
            is_short = true
            break
        end
        free_at(token, max(time_of(token), cooled))
    end
    if is_short then
        -- There are fewer tokens than calls: nothing is permitted until those calls have left the window.
        epoch.blocked = max(epoch.blocked, cooled + rules.guard)
    end
    return slots
end

local function join(said)
    local member = caller.member
    pass_time()
    local seat = seat_of(member)
    if seat and seat.life ~= caller.life then
        bury(member)
        seat = nil
    end
    local stays = said.epoch == epoch.name
    if not stays and epoch.live == 0 then
        -- No live member could have noticed a clock jump: earlier calls count from now.
        free_not_before(gone_by())
    end
    -- Its own report of its calls is authoritative; the stored bookings are no longer needed.
    local own = release_all(member)
    if seat then
        attach(member, seat)
    else
        seat = take(member)
        if not is_whole() and not stays then
            local share = min(said.held, less(epoch.limit, epoch.brought))
            epoch.brought = epoch.brought + share
            tell(member, seat, 0, share)
        end
    end
    count_limit()
    for _, token in ipairs(fit_tokens(target(), now + said.ready_in)) do
        insert(own, token)
    end
    block(said.block)
    block_globally(said.global_block)
    local slots = lodge(own, said.flying, stays and said.untold or said.cooling)
    return standing(seat, stays and said.held or seat.claim, said.wants_share, slots)
end

-- State between calls

local stored = {}

-- Loads the epoch. Returns nil if a part of it is missing: a server short of memory may evict any key, and half an
-- epoch is useless.
local function load()
    local values = call('HMGET', STATE, unpack(FIELDS))
    local found = {}
    for place, field in ipairs(FIELDS) do
        found[field] = place > TEXTS and tonumber(values[place]) or values[place] or DEFAULTS[field]
        if not found[field] then
            return nil
        end
        stored[field] = found[field]
    end
    local is_all_there = call('ZCARD', TOKENS) == found.tokens and call('HLEN', HOLDERS) == found.holders
        and call('HLEN', SEATS) == found.seats and call('ZCARD', LIVE) == found.live
        and call('ZCARD', LIMITS) == found.live and call('ZCARD', AWAY) == found.seats - found.live
    return is_all_there and found or nil
end

local function begin()
    call('DEL', unpack(KEYS))
    stored = {}
    return {
        name = whole_number(now) .. '-' .. caller.life, server = caller.server, born = now, last = now, whole = 0,
        brought = 0, limit = rules.limit, blocked = 0, global_block = 0, pace = 0, line = 0, average = rules.window,
        queued = 1, sequence = 0, claimed = 0, claimed_away = 0, tokens = 0, holders = 0, seats = 0, live = 0,
    }
end

local function save()
    local changed = {}
    for place, field in ipairs(FIELDS) do
        local value = epoch[field]
        if value ~= stored[field] then
            insert(changed, field)
            insert(changed, place > TEXTS and whole_number(value) or value)
        end
    end
    if #changed > 0 then
        call('HSET', STATE, unpack(changed))
    end
    local forgotten = floor(rules.forget / 1000)
    for _, key in ipairs(KEYS) do
        call('PEXPIRE', key, whole_number(forgotten + (key == STATE and STATE_LASTS or REST_LASTS)))
    end
end

-- The window: one call

local function done(stands)
    save()
    local free = call('ZCOUNT', TOKENS, '-inf', whole_number(now))
    local reply = {
        'done', now, epoch.name, stands.share, stands.members, stands.live, stands.pool, free, stands.blocked,
        stands.global_block, stands.again,
    }
    for _, slot in ipairs(stands.slots) do
        insert(reply, slot.token)
        insert(reply, slot.booking)
        insert(reply, slot.wait)
    end
    return reply
end

local function rejoin(is_replaced)
    return { 'rejoin', now, is_replaced and 1 or 0 }
end

local function look()
    return { 'seen', now, epoch and epoch.name or '' }
end

local function sync(said)
    pass_time()
    local seat = seat_of(caller.member)
    if not is_live(caller.member, seat) then
        save()
        return rejoin(seat and seat.life ~= caller.life)
    end
    see(caller.member)
    settle(said.ended)
    block_globally(said.block)
    for _, dead in ipairs(said.dead) do
        if dead ~= caller.member then
            bury(dead)
        end
    end
    fit(gone_by())
    local stands = standing(seat, said.held, said.wants_share, {})
    if said.want > 0 and is_strange(seat) then
        -- Members that joined earlier would have noticed a clock jump; this one could not.
        stands.again = rules.retry
    else
        book(said, stands)
    end
    return done(stands)
end

local function leave(said)
    pass_time()
    if is_live(caller.member, seat_of(caller.member)) then
        settle(said.ended)
        block_globally(said.block)
        remove_seat(caller.member)
        if said.want == 0 then
            -- It does not know which tokens it still holds, so it will not use them.
            release_all(caller.member)
        end
        free_held_by(caller.member, math.huge)
        count_limit()
        fit(gone_by())
    end
    save()
    return look()
end

-- Changes nothing. A server that currently rejects writes rejects it, and with it the whole script: a member that could
-- still look would try to join forever, and each attempt would postpone the use of its share.
call('ZADD', TOKENS, 'XX', 0, '')
now = clock()
epoch = load()
if epoch and (epoch.server ~= caller.server or now + BACK < epoch.last) then
    epoch = nil
end
if epoch then
    now = max(now, epoch.last)
end
if caller.not_after > 0 and now > caller.not_after then
    return { 'stale', now }
end
if caller.doing == 'look' then
    return look()
end
if caller.doing == 'join' then
    local said = read_join()
    if not epoch or epoch.name == said.renew then
        epoch = begin()
    end
    return done(join(said))
end
local said = read_sync()
if not epoch or epoch.name ~= said.epoch then
    return rejoin(false)
end
return caller.doing == 'leave' and leave(said) or sync(said)
