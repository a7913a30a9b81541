-- Named budgets that several processes share. This does what `core::budget::Budget` does, function by function and under
-- the same names, with the server's clock.
--
-- Amounts are millionths of points, times and durations microseconds: whole numbers, as in the model. Doubles hold whole
-- numbers exactly up to 2^53, so limits and costs end at 10^15 (a billion points), products are taken apart so that no
-- step passes 2^53, and the results are the model's to the last digit. Only sums of many bookings and debts can grow past
-- 2^53 (nine billion points); from there on they are rounded by 2^-51 of their size, always against the asker.
--
-- KEYS  1 the budget, a hash
--       2 its bookings, a list of `due:cost` by due
--       3 the processes that were heard of lately, a sorted set by time
--       4 the number of the caller's last report on what it spent while it was away
-- ARGV  1 acquire | observe | show     2 the server's run id
--       3 the caller's name            4 the epoch that it knows; empty if it knows none
--       5 the maximum it believes in   6 the restore rate   7 which of them the upstream has said (1 + 2)
--       8 how long what comes back is spoken for, as far as it knows
--       9 a new default maximum        10 a new default restore rate; both empty if there is nothing new
--      11 its report's number; 0 if it has none             12 what it reports as spent
--      13… acquire: cost, longest wait, and so on in pairs
--          observe: available, maximum, restore rate, retry after, age; empty where nothing was said
-- Answer: epoch, now, members, maximum, restore, observed, available, booked (-1 but for show), booked for, blocked for;
--         acquire adds for each pair: 0 refused | 1 allowed | 2 never possible, the wait (-1: for ever), what is left

local MEMORY = 60 * 1000000 -- as long as `Budget::MEMORY`
local MOST_BOOKINGS = 1024
local MOST = 1000000000 * 1000000 -- as much as `Partner::MOST`
local EXACT = 2 ^ 53
local LONGEST = 100 * 365 * 24 * 3600 * 1000000 -- no longer wait is told: further ahead, times are not exact
local MEMBER_FOR = 30 * 1000000
local REPORT_FOR_MS = 3600 * 1000
local KEEP_MS = 30 * 24 * 3600 * 1000 -- an idle budget that is full, for what its upstream has said
local KEEP_MOST_MS = 120 * KEEP_MS

local fmod, max, min = math.fmod, math.max, math.min

local function text(number)
    return string.format('%.0f', number)
end

-- A sum that rounding has not made greater, and one that it has not made less.
local function down(sum)
    if sum > EXACT or sum < -EXACT then
        return sum - math.abs(sum) * 2 ^ -51
    end
    return sum
end

local function up(sum)
    return -down(-sum)
end

local function amount(argument)
    local number = tonumber(argument)
    if not (number and number >= 0 and number <= MOST) then
        error('an amount beyond what is counted exactly: ' .. tostring(argument))
    end
    return number
end

local function said(argument)
    if argument == '' then
        return nil
    end
    return amount(argument)
end

local op, run, caller, known = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local new_maximum, new_restore = said(ARGV[9]), said(ARGV[10])

local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]

local stored = redis.call('HMGET', KEYS[1], 'epoch', 'run', 'maximum', 'restore', 'observed', 'balance', 'as_of',
    'blocked_until', 'gift', 'seen', 'shift')
local epoch = stored[1]
local maximum, restore, observed, balance, as_of, blocked_until, gift, seen, shift
-- Whether more than `balance`, `as_of` and `seen` has to be written.
local changed = false

if epoch then
    maximum, restore, observed = tonumber(stored[3]), tonumber(stored[4]), tonumber(stored[5])
    balance, as_of, blocked_until = tonumber(stored[6]), tonumber(stored[7]), tonumber(stored[8])
    -- What is here although nobody knows what was spent before: what a new budget starts with.
    gift = tonumber(stored[9])
    seen, shift = tonumber(stored[10]), tonumber(stored[11])
else
    maximum, restore, observed = amount(ARGV[5]), amount(ARGV[6]), tonumber(ARGV[7])
    balance, as_of, blocked_until = maximum, clock, 0
    gift, seen, shift = maximum, clock, 0
end

-- A clock that is put back (or another server's, after a failover) goes on from where it was.
local now = clock + shift
if now < seen then
    shift = shift + seen - now
    now = seen
    changed = true
end

-- What comes back in so long.
local function restored(elapsed)
    local micros, fraction = fmod(elapsed, 1000000), fmod(restore, 1000000)
    local seconds, whole = (elapsed - micros) / 1000000, (restore - fraction) / 1000000
    local part = fraction * micros
    return down(restore * seconds + whole * micros + (part - fmod(part, 1000000)) / 1000000)
end

local function balance_at(instant)
    return min(down(balance + restored(max(0, instant - as_of))), maximum)
end

-- How long so much takes to come back, rounded up: missing * 10^6 / restore, in steps that stay exact.
local SMALL, ONE_STEP, STEPS = 9007199254, { 1000000 }, { 8, 8, 5, 5, 5, 5, 5, 5 }
local function time_for(missing)
    local rest = fmod(missing, restore)
    local wait = (missing - rest) / restore
    for _, factor in ipairs(rest <= SMALL and ONE_STEP or STEPS) do
        local scaled = rest * factor
        rest = fmod(scaled, restore)
        wait = wait * factor + (scaled - rest) / restore
    end
    if rest > 0 then
        wait = wait + 1
    end
    return wait
end

-- When so much is there; nil if nothing comes back.
local function restored_at(cost)
    local missing = up(cost - balance)
    if missing <= 0 then
        return as_of
    end
    if restore > 0 then
        return as_of + time_for(missing)
    end
end

local function available()
    if now < max(as_of, blocked_until) then
        return 0
    end
    return max(0, balance_at(now))
end

local function settle()
    balance = balance_at(now)
    as_of = max(as_of, now)
end

local function spend(due, cost)
    balance = down(balance_at(due) - cost)
    as_of = due
end

local function booking(entry)
    local due, cost = string.match(entry, '^(%d+):(%d+)$')
    return tonumber(due), tonumber(cost)
end

-- Keeps bookings, whose last one is due at `as_of`.
local function remember(bookings)
    local oldest = redis.call('LINDEX', KEYS[2], 0)
    while oldest and now - booking(oldest) > MEMORY do
        redis.call('LPOP', KEYS[2])
        oldest = redis.call('LINDEX', KEYS[2], 0)
    end
    local surplus = redis.call('RPUSH', KEYS[2], unpack(bookings)) - MOST_BOOKINGS
    if surplus > 0 then
        -- Under the latest of their times: an observation rather counts too much as unseen than too little.
        local due, sum = 0, 0
        for _, entry in ipairs(redis.call('LRANGE', KEYS[2], 0, surplus)) do
            local at, cost = booking(entry)
            due, sum = at, up(sum + cost)
        end
        redis.call('LTRIM', KEYS[2], surplus, -1)
        redis.call('LSET', KEYS[2], 0, text(due) .. ':' .. text(sum))
    end
    redis.call('PEXPIRE', KEYS[2], text((max(0, as_of - now) + MEMORY) / 1000 + 1000))
end

-- Another server than the one that wrote this last: what that one answered just before may be missing here.
if not epoch or stored[2] ~= run then
    if epoch then
        settle()
        gift = max(0, balance)
    end
    epoch = caller .. ':' .. text(clock)
    changed = true
end

-- The caller knew this budget before it was forgotten, so it cannot be new.
if known ~= '' and known ~= epoch then
    settle()
    balance = down(balance - gift)
    gift = 0
    as_of = max(as_of, now + tonumber(ARGV[8]))
    changed = true
end

local report = tonumber(ARGV[11])
if report > 0 and (tonumber(redis.call('GET', KEYS[4]) or 0)) < report then
    local cost, due = amount(ARGV[12]), max(as_of, now)
    spend(due, cost)
    remember({ text(due) .. ':' .. text(cost) })
    redis.call('SET', KEYS[4], text(report), 'PX', text(REPORT_FOR_MS))
end

if new_maximum then
    settle()
    if observed % 2 == 0 then
        maximum = new_maximum
    end
    if observed < 2 then
        restore = new_restore
    end
    balance = min(balance, maximum)
    changed = true
end

local outcomes, booked = {}, -1

if op == 'acquire' then
    local bookings = {}
    for at = 13, #ARGV, 2 do
        local cost, max_wait = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
        local outcome, wait = 0, -1
        if cost > maximum then
            outcome = 2
        else
            local due = restored_at(cost)
            if due then
                due = max(due, as_of, blocked_until, now)
                wait = min(due - now, LONGEST)
                if due - now <= max_wait then
                    outcome = 1
                    spend(due, cost)
                    bookings[#bookings + 1] = text(due) .. ':' .. text(cost)
                end
            end
        end
        local count = #outcomes
        outcomes[count + 1], outcomes[count + 2], outcomes[count + 3] = outcome, wait, available()
    end
    if #bookings > 0 then
        remember(bookings)
    end
elseif op == 'observe' then
    local reported, says_maximum, says_restore = said(ARGV[13]), said(ARGV[14]), said(ARGV[15])
    local retry_after, age = tonumber(ARGV[16]), tonumber(ARGV[17])
    settle()
    if says_maximum then
        maximum = says_maximum
        observed = observed + 1 - observed % 2
    end
    if says_restore then
        restore = says_restore
        observed = observed % 2 + 2
    end
    -- An upstream that wants to be left alone, and does not say what is left, has nothing left.
    if retry_after and not reported then
        reported = 0
    end
    if reported then
        balance, as_of, gift = min(reported, maximum), now, 0
        local sent = now - age
        for _, entry in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
            local due, cost = booking(entry)
            if due > sent then
                spend(max(due, now), cost)
            end
        end
    end
    balance = min(balance, maximum)
    if retry_after then
        blocked_until = max(blocked_until, now + retry_after)
    end
    changed = true
else
    booked = 0
    for _, entry in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
        local due, cost = booking(entry)
        if due > now then
            booked = min(booked + cost, EXACT)
        end
    end
end

redis.call('HSET', KEYS[1], 'balance', text(balance), 'as_of', text(as_of), 'seen', text(now))
if changed then
    redis.call('HSET', KEYS[1], 'epoch', epoch, 'run', run, 'maximum', text(maximum), 'restore', text(restore), 'observed',
        observed, 'blocked_until', text(blocked_until), 'gift', text(gift), 'shift', text(shift))
end
-- Until it is full again, and then as long as what the upstream has said is worth knowing.
local full_ms = KEEP_MOST_MS
if restore > 0 then
    full_ms = (maximum - balance) / restore * 1000
end
local keep_ms = max(as_of, blocked_until, now) / 1000 - now / 1000 + full_ms + KEEP_MS
redis.call('PEXPIRE', KEYS[1], text(min(keep_ms, KEEP_MOST_MS)))

redis.call('ZADD', KEYS[3], text(clock), caller)
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. text(clock - MEMBER_FOR))
redis.call('PEXPIRE', KEYS[3], text(MEMBER_FOR / 1000))

local answer = {
    epoch, now, redis.call('ZCARD', KEYS[3]), maximum, restore, observed, available(), booked,
    max(0, as_of - now), max(0, blocked_until - now),
}
for at = 1, #outcomes do
    answer[#answer + 1] = outcomes[at]
end
return answer
