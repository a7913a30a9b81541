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
local MEMBERS = KEYS[4] -- hash: member -> 'incarnation claim limit since'
local LIVE = KEYS[5]    -- sorted set: live member -> when it was last active
local LIMITS = KEYS[6]  -- sorted set: live member -> its limit
local DETACHED = KEYS[7] -- sorted set: detached member -> when it is removed
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

-- Names in this script, which are those of the model, of fields that are stored under the names of earlier versions.
local NAMES = {
    ['born'] = 'started', ['whole'] = 'completed', ['brought'] = 'contributed', ['pace'] = 'next_due',
    ['average'] = 'token_time', ['claimed_away'] = 'claimed_detached', ['seats'] = 'members',
}

-- A clock that goes back by less is treated as stopped.
local MAX_STEP_BACK = 50000

-- Nothing is needed once all members would be removed. The state expires first: without it, the rest is not read.
local STATE_LASTS = 5 * 60 * 1000
local REST_LASTS = 6 * 60 * 1000

local call, max, min, floor, insert = redis.call, math.max, math.min, math.floor, table.insert

-- Arguments, in the order of `window.rs`; those of the specific command follow.

local function arg(index)
    return tonumber(ARGV[index])
end

local caller = { command = ARGV[1], member = ARGV[2], incarnation = ARGV[3], not_after = arg(4), server = ARGV[5] }
local pubsub = { channel = ARGV[6], scope = ARGV[7] }
local rules = {
    limit = arg(8), window = arg(9), silence = arg(10), forget = arg(11), newcomer = arg(12), gather = arg(13),
    horizon = arg(14), grace = arg(15), guard = arg(16), hold = arg(17), burst = arg(18), retry = arg(19),
}
local COMMON_ARGS = 19

-- The arguments of the command, counted from 1.

local function command_text(index)
    return ARGV[COMMON_ARGS + index]
end

local function command_number(index)
    return arg(COMMON_ARGS + index)
end

local function read_join()
    return {
        epoch = command_text(1), renew = command_text(2), held = command_number(3), uses_share = command_number(4) == 1,
        in_flight = command_number(5), cooling = command_number(6), unreported = command_number(7),
        ready_in = command_number(8), block = command_number(9), global_block = command_number(10),
    }
end

local function read_sync()
    local request = {
        epoch = command_text(1), held = command_number(2), uses_share = command_number(3) == 1,
        requested_slots = command_number(4), urgent = command_number(5) == 1, block = command_number(6), reports = {},
        dead = {},
    }
    local index = COMMON_ARGS + 9
    for report = 1, command_number(7) do
        -- A slot that was not used has no time since its response.
        request.reports[report] = { token = ARGV[index], booking = ARGV[index + 1], ago = arg(index + 2) }
        index = index + 3
    end
    for dead = 1, command_number(8) do
        request.dead[dead] = ARGV[index]
        index = index + 1
    end
    return request
end

-- State of all functions below.

local now
local epoch

local function whole_number(value)
    return string.format('%.0f', value)
end

local function saturating_sub(value, by)
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
local function nth_token(before)
    local found = call('ZRANGE', TOKENS, before, before, 'WITHSCORES')
    return found[1], tonumber(found[2] or 0)
end

-- The token that is free first, and when.
local function first_token()
    return nth_token(0)
end

local function is_held(token)
    return call('HEXISTS', HOLDERS, token) == 1
end

local function time_of(token)
    return tonumber(call('ZSCORE', TOKENS, token) or 0)
end

-- A free token without a holder.
local function find_idle()
    local token, time = first_token()
    if token and time <= now and not is_held(token) then
        return token
    end
end

local function set_free_at(token, time)
    epoch.tokens = epoch.tokens + call('ZADD', TOKENS, whole_number(time), token)
end

local function add_token(time)
    local token = next_number()
    set_free_at(token, time)
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
    set_free_at(token, time)
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
    for index = 1, #all, 2 do
        local booking, at, holder = read_holder(all[index + 1])
        if holder == member then
            held[#held + 1] = { token = all[index], booking = booking, at = at }
        end
    end
    table.sort(held, function(one, other) return one.token < other.token end)
    return held
end

-- Ends all bookings of a member. Returns its tokens, ordered by when they are free.
local function release_all(member)
    local held = held_by(member)
    for _, slot in ipairs(held) do
        slot.time = max(now, slot.at)
        epoch.holders = epoch.holders - call('HDEL', HOLDERS, slot.token)
        set_free_at(slot.token, slot.time)
    end
    table.sort(held, function(one, other)
        return one.time < other.time or (one.time == other.time and one.token < other.token)
    end)
    local tokens = {}
    for index, slot in ipairs(held) do
        tokens[index] = slot.token
    end
    return tokens
end

-- The tokens of a dead member are free no later than `time`, and without a member until then.
local function free_held_by(member, time)
    for _, slot in ipairs(held_by(member)) do
        set_holder(slot.token, slot.booking, slot.at, '')
        if time_of(slot.token) > time then
            set_free_at(slot.token, time)
        end
    end
end

-- Removes up to `most` tokens that a member holds, but leaves `target`.
local function drop_held_by(member, most, target)
    for index, slot in ipairs(held_by(member)) do
        if index <= most and epoch.tokens > target then
            remove_token(slot.token)
        end
    end
end

-- Tokens without a holder are free no later than `time`.
local function free_unheld_by(time)
    for _, token in ipairs(call('ZRANGEBYSCORE', TOKENS, '(' .. whole_number(time), '+inf')) do
        if not is_held(token) then
            set_free_at(token, time)
        end
    end
end

-- No token is free before `time`.
local function free_not_before(time)
    for _, token in ipairs(call('ZRANGEBYSCORE', TOKENS, '-inf', '(' .. whole_number(time))) do
        set_free_at(token, time)
    end
end

-- Removes the tokens that are free first, or creates new ones, until there are `target`. Returns the new ones.
local function resize_tokens(target, time)
    while epoch.tokens > target do
        remove_token((first_token()))
    end
    local made = {}
    while epoch.tokens < target do
        made[#made + 1] = add_token(time)
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
local function queue_caller(due)
    if not call('ZSCORE', QUEUE, caller.member) then
        call('ZADD', QUEUE, next_number(), caller.member)
    end
    call('ZADD', DUE, whole_number(due), caller.member)
end

-- Members

local function read_member(member)
    local record = call('HGET', MEMBERS, member)
    if not record then
        return nil
    end
    local incarnation, claim, limit, since = string.match(record, '^(%x+) (%d+) (%d+) (%d+)$')
    return { incarnation = incarnation, claim = tonumber(claim), limit = tonumber(limit), since = tonumber(since) }
end

local function write_member(member, record)
    local written = table.concat(
        { record.incarnation, whole_number(record.claim), whole_number(record.limit), whole_number(record.since) }, ' ')
    epoch.members = epoch.members + call('HSET', MEMBERS, member, written)
end

local function is_live(member, record)
    return record ~= nil and record.incarnation == caller.incarnation and call('ZSCORE', LIVE, member) ~= false
end

local function touch(member)
    epoch.live = epoch.live + call('ZADD', LIVE, whole_number(now), member)
end

-- Creates a record for a member that has none.
local function add_member(member)
    local record = { incarnation = caller.incarnation, claim = 0, limit = rules.limit, since = now }
    write_member(member, record)
    call('ZADD', LIMITS, whole_number(record.limit), member)
    touch(member)
    return record
end

-- Makes a detached member live again.
local function attach(member, record)
    if call('ZREM', DETACHED, member) == 1 then
        epoch.claimed_detached = epoch.claimed_detached - record.claim
        call('ZADD', LIMITS, whole_number(record.limit), member)
    end
    touch(member)
end

local function remove_member(member)
    local record = read_member(member)
    if not record then
        return false
    end
    if call('ZREM', DETACHED, member) == 1 then
        epoch.claimed_detached = epoch.claimed_detached - record.claim
    end
    epoch.live = epoch.live - call('ZREM', LIVE, member)
    leave_queue(member)
    call('ZREM', LIMITS, member)
    epoch.members = epoch.members - call('HDEL', MEMBERS, member)
    epoch.claimed = epoch.claimed - record.claim
    return true
end

-- Detaches members that were last active before `since`. Returns each with its claim, the longest silent first.
local function detach_silent(since, till)
    local silent = call('ZRANGEBYSCORE', LIVE, '-inf', '(' .. whole_number(since))
    local detached = {}
    for index, member in ipairs(silent) do
        local record = read_member(member)
        epoch.live = epoch.live - call('ZREM', LIVE, member)
        leave_queue(member)
        call('ZREM', LIMITS, member)
        call('ZADD', DETACHED, whole_number(till), member)
        epoch.claimed_detached = epoch.claimed_detached + record.claim
        detached[index] = { member = member, claim = record.claim }
    end
    return detached
end

-- Removes members that were detached for too long. Returns whether there were any.
local function remove_expired()
    if epoch.members == epoch.live then
        return false
    end
    local expired = call('ZRANGEBYSCORE', DETACHED, '-inf', whole_number(now))
    for _, member in ipairs(expired) do
        remove_member(member)
    end
    return #expired > 0
end

-- Whether there are members that have not called since it joined, and so do not know of it. Detached members would have
-- called by now if the clock had only jumped, unless the record is new.
local function is_unknown_to_others(record)
    local oldest = call('ZRANGE', LIVE, 0, 0, 'WITHSCORES')[2]
    local is_new = record.since > saturating_sub(now, rules.silence) and epoch.members > epoch.live
    return tonumber(oldest or 0) < record.since or is_new
end

-- The share that a member should have, as far as the claims of others permit.
local function fair_share(record, limit)
    local live, away = max(epoch.live, 1), epoch.claimed_detached
    local fair = floor(saturating_sub(limit, away) / live)
    local others = epoch.claimed - record.claim
    -- The remainder of the division goes to the next caller once all others have their share, so that all of it is
    -- used.
    local is_over = saturating_sub(others, away) >= fair * (live - 1)
    local room = min(fair + (is_over and 1 or 0), saturating_sub(limit, others))
    -- If Redis lost all data now, no other member would account for this one.
    return is_unknown_to_others(record) and min(room, record.claim) or room
end

-- Records the share in this reply. Until the member confirms a smaller one, it may not have received it.
local function record_share(member, record, held, share)
    local claim = max(min(held, record.claim), share)
    if claim ~= record.claim then
        epoch.claimed = epoch.claimed + claim - record.claim
        record.claim = claim
        write_member(member, record)
    end
end

-- The epoch

local function is_complete()
    return epoch.completed == 1
end

-- What belongs to the members, detached or not.
local function total_tokens()
    return is_complete() and epoch.limit or min(epoch.contributed, epoch.limit)
end

-- Desired number of tokens.
local function target()
    return saturating_sub(total_tokens(), epoch.claimed_detached)
end

-- Creates or removes tokens to reach the desired number; new ones are free at `time`.
local function resize(time)
    resize_tokens(target(), time)
end

-- The limit is the lowest of all members.
local function update_limit()
    local least = call('ZRANGE', LIMITS, 0, 0, 'WITHSCORES')[2]
    if least then
        epoch.limit = tonumber(least)
    end
end

-- When calls of a removed member can no longer arrive.
local function removed_calls_end()
    return now + rules.window + rules.guard
end

-- Makes the epoch whole if possible. Returns in which way.
local function try_complete()
    if is_complete() then
        return nil
    end
    local age = saturating_sub(now, epoch.started)
    local completion
    if epoch.contributed >= epoch.limit and age >= rules.gather then
        completion = 'together'
    elseif epoch.contributed == 0 and age >= rules.newcomer then
        completion = 'newcomers'
    elseif age >= rules.forget then
        completion = 'late'
    else
        return nil
    end
    epoch.completed = 1
    return completion
end

-- Applies the passage of time: silent members are detached, those detached for long are removed, and an epoch becomes
-- whole.
local function advance()
    epoch.last = now
    local silent = detach_silent(saturating_sub(now, rules.silence), now + rules.forget)
    local forgotten = remove_expired()
    if #silent == 0 and not forgotten and is_complete() then
        return
    end
    update_limit()
    local wanted = target()
    for _, detached in ipairs(silent) do
        -- The tokens that it holds are those that it will count as its own.
        drop_held_by(detached.member, detached.claim, wanted)
    end
    local completion = try_complete()
    if completion == 'together' then
        -- No member can still use what was booked before the epoch started, except for calls that were just sent.
        local left = epoch.started + rules.horizon + rules.grace + rules.guard
        free_unheld_by(max(now, left) + rules.window)
    elseif completion == 'newcomers' then
        resize(now)
    end
    resize(removed_calls_end())
end

-- Records the outcomes of slots.
local function apply_reports(reports)
    for _, slot in ipairs(reports) do
        local at = release(slot.token, caller.member, slot.booking)
        if at and slot.ago then
            local back = saturating_sub(now, slot.ago) + rules.window
            epoch.token_time = floor((epoch.token_time * 15 + saturating_sub(back, at)) / 16)
            set_free_at(slot.token, back)
        elseif at then
            -- Not before its booked time: the previous booking counts until then.
            set_free_at(slot.token, max(now, at))
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
        local message = '{"kind":"block","scope":%s,"ms":%.0f,"by":%s}'
        local ms = floor((duration + 999) / 1000)
        call('PUBLISH', pubsub.channel, message:format(cjson.encode(pubsub.scope), ms, cjson.encode(caller.member)))
    end
end

-- Removes a member that is certainly dead: its calls can arrive for no longer than the guard.
local function remove_dead_member(member)
    if remove_member(member) then
        free_held_by(member, removed_calls_end())
        update_limit()
        resize(removed_calls_end())
    end
end

-- The state of a member, with its share in this reply.
local function membership_state(record, held, uses_share, slots)
    local share = 0
    if uses_share then
        share = fair_share(record, total_tokens())
    end
    record_share(caller.member, record, held, share)
    return {
        share = share, members = epoch.members, live = epoch.live, pool = epoch.tokens,
        blocked = saturating_sub(epoch.blocked, now), global_block = saturating_sub(epoch.global_block, now),
        retry_after = -1, slots = slots,
    }
end

-- Booking

-- When the caller should call again if it cannot have a slot now. It keeps its position in the queue until then.
local function schedule_retry(due)
    if not is_complete() then
        due = min(due, now + rules.retry)
    end
    queue_caller(due)
    return due - now
end

-- When a member with so many others before it can have a slot, and whether that is certain: when a held token is
-- returned depends on its holder.
local function slot_after(ahead, spaced)
    local token, time = nth_token(ahead)
    if not token then
        return math.huge, false
    end
    return max(now, time, epoch.blocked, spaced), not (time > now and is_held(token))
end

local function book_slots(request, state)
    if request.requested_slots == 0 then
        return
    end
    -- If a part of the queue is missing, it has no order; the members only lose their positions.
    if epoch.queued == 0 or call('ZCARD', QUEUE) ~= call('ZCARD', DUE) then
        call('DEL', QUEUE, DUE)
        epoch.queued = 1
    end
    -- A slot is booked a horizon ahead, so waiting that long for a member that does not call wastes none.
    remove_late(saturating_sub(now, rules.horizon))
    local interval = max(floor(epoch.token_time / max(epoch.limit, 1)), 1)
    for index = 1, request.requested_slots do
        local is_urgent = request.urgent and index == 1
        local token, time = first_token()
        if not token then
            state.retry_after = rules.retry
            return
        end
        local spaced = is_urgent and 0 or saturating_sub(epoch.next_due, saturating_sub(rules.burst, 1) * interval)
        -- There must be a slot for each member that waits before it, too.
        local ahead = ahead_of_caller()
        local before = ahead * interval
        local last, is_known = slot_after(ahead, is_urgent and 0 or spaced + before)
        if last > now + rules.horizon then
            local earliest = now + interval + (is_known and 0 or before)
            local ready = max(is_known and last or 0, epoch.blocked + before)
            state.retry_after = schedule_retry(max(saturating_sub(ready, rules.horizon), earliest))
            return
        end
        local at = max(now, time, epoch.blocked, spaced)
        local booking = hold(token, caller.member, at, at + rules.hold + rules.window)
        if not is_urgent then
            epoch.next_due = max(epoch.next_due, at) + interval
        end
        leave_queue(caller.member)
        insert(state.slots, { token = token, booking = booking, wait = at - now })
    end
end

-- Joining

-- Assigns tokens to the calls that a member has made, its own first.
local function assign_tokens(own_tokens, in_flight, cooling)
    local used = 0
    local function next_token()
        used = used + 1
        return own_tokens[used] or find_idle()
    end
    local slots = {}
    local is_short = false
    for _ = 1, in_flight do
        local token = next_token()
        if not token then
            is_short = true
            break
        end
        local booking = hold(token, caller.member, now, now + rules.hold + rules.window)
        insert(slots, { token = token, booking = booking, wait = 0 })
    end
    local cooled = now + rules.window
    for _ = 1, cooling do
        local token = next_token()
        if not token then
            is_short = true
            break
        end
        set_free_at(token, max(time_of(token), cooled))
    end
    if is_short then
        -- There are fewer tokens than calls: nothing is permitted until those calls have left the window.
        epoch.blocked = max(epoch.blocked, cooled + rules.guard)
    end
    return slots
end

local function join(request)
    local member = caller.member
    advance()
    local record = read_member(member)
    if record and record.incarnation ~= caller.incarnation then
        remove_dead_member(member)
        record = nil
    end
    local stays = request.epoch == epoch.name
    if not stays and epoch.live == 0 then
        -- No live member could have noticed a clock jump: earlier calls count from now.
        free_not_before(removed_calls_end())
    end
    -- Its own report of its calls is authoritative; the stored bookings are no longer needed.
    local own_tokens = release_all(member)
    if record then
        attach(member, record)
    else
        record = add_member(member)
        if not is_complete() and not stays then
            local share = min(request.held, saturating_sub(epoch.limit, epoch.contributed))
            epoch.contributed = epoch.contributed + share
            record_share(member, record, 0, share)
        end
    end
    update_limit()
    for _, token in ipairs(resize_tokens(target(), now + request.ready_in)) do
        insert(own_tokens, token)
    end
    block(request.block)
    block_globally(request.global_block)
    local slots = assign_tokens(own_tokens, request.in_flight, stays and request.unreported or request.cooling)
    return membership_state(record, stays and request.held or record.claim, request.uses_share, slots)
end

-- State between calls

local stored = {}

-- Loads the epoch. Returns nil if a part of it is missing: a server short of memory may evict any key, and half an
-- epoch is useless.
local function load_epoch()
    local values = call('HMGET', STATE, unpack(FIELDS))
    local found = {}
    for index, field in ipairs(FIELDS) do
        local value = index > TEXTS and tonumber(values[index]) or values[index] or DEFAULTS[field]
        if not value then
            return nil
        end
        found[NAMES[field] or field] = value
        stored[field] = value
    end
    local is_all_there = call('ZCARD', TOKENS) == found.tokens and call('HLEN', HOLDERS) == found.holders
        and call('HLEN', MEMBERS) == found.members and call('ZCARD', LIVE) == found.live
        and call('ZCARD', LIMITS) == found.live and call('ZCARD', DETACHED) == found.members - found.live
    return is_all_there and found or nil
end

local function start_epoch()
    call('DEL', unpack(KEYS))
    stored = {}
    return {
        name = whole_number(now) .. '-' .. caller.incarnation, server = caller.server, started = now, last = now,
        completed = 0, contributed = 0, limit = rules.limit, blocked = 0, global_block = 0, next_due = 0, line = 0,
        token_time = rules.window, queued = 1, sequence = 0, claimed = 0, claimed_detached = 0, tokens = 0,
        holders = 0, members = 0, live = 0,
    }
end

local function save_epoch()
    local changed = {}
    for index, field in ipairs(FIELDS) do
        local value = epoch[NAMES[field] or field]
        if value ~= stored[field] then
            insert(changed, field)
            insert(changed, index > TEXTS and whole_number(value) or value)
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

local function done_reply(state)
    save_epoch()
    local free = call('ZCOUNT', TOKENS, '-inf', whole_number(now))
    local reply = {
        'done', now, epoch.name, state.share, state.members, state.live, state.pool, free, state.blocked,
        state.global_block, state.retry_after,
    }
    for _, slot in ipairs(state.slots) do
        insert(reply, slot.token)
        insert(reply, slot.booking)
        insert(reply, slot.wait)
    end
    return reply
end

local function rejoin_reply(is_replaced)
    return { 'rejoin', now, is_replaced and 1 or 0 }
end

local function status_reply()
    return { 'status', now, epoch and epoch.name or '' }
end

local function sync(request)
    advance()
    local record = read_member(caller.member)
    if not is_live(caller.member, record) then
        save_epoch()
        return rejoin_reply(record and record.incarnation ~= caller.incarnation)
    end
    touch(caller.member)
    apply_reports(request.reports)
    block_globally(request.block)
    for _, dead in ipairs(request.dead) do
        if dead ~= caller.member then
            remove_dead_member(dead)
        end
    end
    resize(removed_calls_end())
    local state = membership_state(record, request.held, request.uses_share, {})
    if request.requested_slots > 0 and is_unknown_to_others(record) then
        -- Members that joined earlier would have noticed a clock jump; this one could not.
        state.retry_after = rules.retry
    else
        book_slots(request, state)
    end
    return done_reply(state)
end

local function leave(request)
    advance()
    if is_live(caller.member, read_member(caller.member)) then
        apply_reports(request.reports)
        block_globally(request.block)
        remove_member(caller.member)
        if request.requested_slots == 0 then
            -- It does not know which tokens it still holds, so it will not use them.
            release_all(caller.member)
        end
        free_held_by(caller.member, math.huge)
        update_limit()
        resize(removed_calls_end())
    end
    save_epoch()
    return status_reply()
end

-- Changes nothing. A server that currently rejects writes rejects it, and with it the whole script: a member that could
-- still probe would try to join forever, and each attempt would postpone the use of its share.
call('ZADD', TOKENS, 'XX', 0, '')
now = clock()
epoch = load_epoch()
if epoch and (epoch.server ~= caller.server or now + MAX_STEP_BACK < epoch.last) then
    epoch = nil
end
if epoch then
    now = max(now, epoch.last)
end
if caller.not_after > 0 and now > caller.not_after then
    return { 'stale', now }
end
if caller.command == 'probe' then
    return status_reply()
end
if caller.command == 'join' then
    local request = read_join()
    if not epoch or epoch.name == request.renew then
        epoch = start_epoch()
    end
    return done_reply(join(request))
end
local request = read_sync()
if not epoch or epoch.name ~= request.epoch then
    return rejoin_reply(false)
end
return caller.command == 'leave' and leave(request) or sync(request)
