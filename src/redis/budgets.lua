-- Named budgets that several processes share. This mirrors `guildhall_core::budget::Budget`, function by function, with
-- the server's clock.
--
-- Amounts are millionths of points, times and durations are microseconds: integers, as in the model. Doubles represent
-- integers exactly up to 2^53, so limits and costs end at 10^15 (a billion points), products are split so that no step
-- exceeds 2^53, and the results equal the model's to the last digit. Only sums of many bookings and debts can exceed
-- 2^53 (nine billion points); from there on they are rounded by 2^-51 of their size, always against the caller.
--
-- KEYS  1 the budget, packed: see STATE
--       2 its bookings by due time, a list of packed pairs of due time and cost; the oldest one is in the budget itself
--       3 the processes that were active recently, a sorted set by time
--       4 the number of the caller's last report on what it spent while it was disconnected
-- ARGV  1 acquire | observe | show     2 the server's run id
--       3 the caller's id              4 the epoch that it knows; empty if it knows none
--       5 the maximum as it knows it   6 the restore rate   7 which of them the upstream has reported (1 + 2)
--       8 for how long restored points are booked, as far as it knows
--       9 a new default maximum        10 a new default restore rate; both empty if unchanged
--      11 the number of its report; 0 if it has none        12 the spending that it reports
--      13… acquire: cost, maximum wait, and so on in pairs
--          observe: available, maximum, restore rate, retry after, age; empty if not reported
-- Returns: epoch, now, members (-1 for an acquire with requests), maximum, restore, observed, available, booked (-1 except
--          for show), booked for, blocked for; acquire adds for each pair: 0 refused | 1 allowed | 2 never possible, the
--          wait (-1: forever), the remaining points
--
-- An acquire on a hot budget is five commands: the time, a read and a write of the budget, a booking in and another one
-- out.

local MEMORY = 60 * 1000000 -- equals `Budget::MEMORY`
local MAX_BOOKINGS = 1024
local MAX_AMOUNT = 1000000000 * 1000000 -- equals the maximum of `guildhall_core::budget::BudgetMember`
local EXACT = 2 ^ 53
local MAX_WAIT = 100 * 365 * 24 * 3600 * 1000000 -- maximum wait in a response: further ahead, times are not exact
local MEMBER_FOR = 30 * 1000000
local REPORT_FOR_MS = 3600 * 1000
local HOUR = 3600 * 1000000 -- the bookings' TTL is extended no more often than this
-- How long an idle, full budget is stored, for the values that its upstream has reported.
local RETENTION = 30 * 24 * HOUR
local MAX_RETENTION = 120 * RETENTION
local PAIR = '<dd'
-- epoch, run id; maximum, restore, observed, balance, as_of, blocked_until, unearned, latest, shift, oldest booking's
-- due time and cost, minimum expiry of the bookings
local STATE = '<ssdddddddddddd'

local fmod, max, min = math.fmod, math.max, math.min

-- Rounds a sum down, and up.
local function round_down(sum)
    if sum > EXACT or sum < -EXACT then
        return sum - math.abs(sum) * 2 ^ -51
    end
    return sum
end

local function round_up(sum)
    return -round_down(-sum)
end

local function amount(argument)
    local number = tonumber(argument)
    if not (number and number >= 0 and number <= MAX_AMOUNT) then
        error('an amount beyond what is counted exactly: ' .. tostring(argument))
    end
    return number
end

local function optional_amount(argument)
    if argument == '' then
        return nil
    end
    return amount(argument)
end

local op, run, caller, known_epoch = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local new_maximum, new_restore = optional_amount(ARGV[9]), optional_amount(ARGV[10])

local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]

local epoch, written_by
local maximum, restore, observed, balance, as_of, blocked_until
-- Points that are available although earlier spending is unknown: what a new budget starts with.
local unearned
-- The latest time so far, and by how much it is ahead of the server's clock.
local latest, shift
-- The oldest booking; its due time is 0 if there is none.
local first_due, first_cost
local bookings_expire

local stored = redis.call('GET', KEYS[1])
if stored then
    epoch, written_by, maximum, restore, observed, balance, as_of, blocked_until, unearned, latest, shift, first_due,
        first_cost, bookings_expire = struct.unpack(STATE, stored)
else
    maximum, restore, observed = amount(ARGV[5]), amount(ARGV[6]), tonumber(ARGV[7])
    balance, as_of, blocked_until = maximum, clock, 0
    unearned, latest, shift = maximum, clock, 0
    first_due, first_cost, bookings_expire = 0, 0, 0
    redis.call('DEL', KEYS[2])
end

-- A clock that is set back (or that of another server, after a failover) continues from where it was.
local now = clock + shift
if now < latest then
    shift = shift + latest - now
    now = latest
end

-- Points restored in a time: restore * elapsed / 10^6, rounded down, in parts if the product is not exact.
local function restored(elapsed)
    local product = restore * elapsed
    if product <= EXACT then
        return (product - fmod(product, 1000000)) / 1000000
    end
    local micros, fraction = fmod(elapsed, 1000000), fmod(restore, 1000000)
    local seconds, whole = (elapsed - micros) / 1000000, (restore - fraction) / 1000000
    local part = fraction * micros
    return round_down(restore * seconds + whole * micros + (part - fmod(part, 1000000)) / 1000000)
end

local function balance_at(instant)
    if instant <= as_of then
        return min(balance, maximum)
    end
    return min(round_down(balance + restored(instant - as_of)), maximum)
end

-- Time to restore an amount: missing * 10^6 / restore, rounded up, in steps if the product is not exact.
local STEPS = { 8, 8, 5, 5, 5, 5, 5, 5 }
local function time_for(missing)
    local wait, rest = 0, missing * 1000000
    if rest <= EXACT then
        local product = rest
        rest = fmod(product, restore)
        wait = (product - rest) / restore
    else
        rest = fmod(missing, restore)
        wait = (missing - rest) / restore
        for _, factor in ipairs(STEPS) do
            local scaled = rest * factor
            rest = fmod(scaled, restore)
            wait = wait * factor + (scaled - rest) / restore
        end
    end
    if rest > 0 then
        wait = wait + 1
    end
    return wait
end

-- When an amount is available; nil if nothing is restored.
local function restored_at(cost)
    local missing = round_up(cost - balance)
    if missing <= 0 then
        return as_of
    end
    if restore > 0 then
        return as_of + time_for(missing)
    end
end

local function available()
    if now < as_of or now < blocked_until then
        return 0
    end
    return max(0, balance_at(now))
end

local function update_balance()
    balance = balance_at(now)
    as_of = max(as_of, now)
end

local function spend(due, cost)
    balance = round_down(balance_at(due) - cost)
    as_of = due
end

-- Stores bookings, given as `due, cost, due, cost` and so on; the last of them is due at `as_of`.
local function store_bookings(bookings)
    while first_due > 0 and now - first_due > MEMORY do
        local next = redis.call('LPOP', KEYS[2])
        if next then
            first_due, first_cost = struct.unpack(PAIR, next)
        else
            first_due = 0
        end
    end
    local from = 1
    if first_due == 0 then
        first_due, first_cost, from = bookings[1], bookings[2], 3
    end
    local packed = {}
    for at = from, #bookings, 2 do
        packed[#packed + 1] = struct.pack(PAIR, bookings[at], bookings[at + 1])
    end
    if #packed == 0 then
        return
    end
    local length = redis.call('RPUSH', KEYS[2], unpack(packed))
    local surplus = length + 1 - MAX_BOOKINGS
    if surplus > 0 then
        -- Under the latest of their times: an observation should count too much as unseen rather than too little.
        for _, pair in ipairs(redis.call('LPOP', KEYS[2], surplus)) do
            local due, cost = struct.unpack(PAIR, pair)
            first_due, first_cost = due, round_up(first_cost + cost)
        end
    end
    if length == #packed or as_of + MEMORY > bookings_expire then
        bookings_expire = max(as_of, now) + MEMORY + HOUR
        redis.call('PEXPIRE', KEYS[2], math.ceil((bookings_expire - now) / 1000))
    end
end

-- Calls `act` with each stored booking, by due time.
local function each_booking(act)
    if first_due > 0 then
        act(first_due, first_cost)
    end
    for _, pair in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
        local due, cost = struct.unpack(PAIR, pair)
        act(due, cost)
    end
end

-- Another server wrote this last: the effects of its last responses may be missing here.
if written_by ~= run then
    if stored then
        update_balance()
        unearned = max(0, balance)
    end
    epoch = string.format('%s:%.0f', caller, clock)
end

-- The caller knew this budget before it was lost, so it cannot be new.
if known_epoch ~= '' and known_epoch ~= epoch then
    update_balance()
    balance = round_down(balance - unearned)
    unearned = 0
    as_of = max(as_of, now + tonumber(ARGV[8]))
end

local report = tonumber(ARGV[11])
if report > 0 and tonumber(redis.call('GET', KEYS[4]) or 0) < report then
    local cost, due = amount(ARGV[12]), max(as_of, now)
    spend(due, cost)
    store_bookings({ due, cost })
    redis.call('SET', KEYS[4], report, 'PX', REPORT_FOR_MS)
end

if new_maximum then
    update_balance()
    if observed % 2 == 0 then
        maximum = new_maximum
    end
    if observed < 2 then
        restore = new_restore
    end
    balance = min(balance, maximum)
end

local outcomes, booked, members = {}, -1, -1

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
                wait = min(due - now, MAX_WAIT)
                if due - now <= max_wait then
                    outcome = 1
                    spend(due, cost)
                    local count = #bookings
                    bookings[count + 1], bookings[count + 2] = due, cost
                end
            end
        end
        local count = #outcomes
        outcomes[count + 1], outcomes[count + 2], outcomes[count + 3] = outcome, wait, available()
    end
    if #bookings > 0 then
        store_bookings(bookings)
    end
elseif op == 'observe' then
    local reported_available = optional_amount(ARGV[13])
    local reported_maximum, reported_restore = optional_amount(ARGV[14]), optional_amount(ARGV[15])
    local retry_after, age = tonumber(ARGV[16]), tonumber(ARGV[17])
    update_balance()
    if reported_maximum then
        maximum = reported_maximum
        observed = observed + 1 - observed % 2
    end
    if reported_restore then
        restore = reported_restore
        observed = observed % 2 + 2
    end
    -- An upstream that requires a pause, and does not report what is available, has nothing available.
    if retry_after and not reported_available then
        reported_available = 0
    end
    if reported_available then
        balance, as_of, unearned = min(reported_available, maximum), now, 0
        local sent = now - age
        each_booking(function(due, cost)
            if due > sent then
                spend(max(due, now), cost)
            end
        end)
    end
    balance = min(balance, maximum)
    if retry_after then
        blocked_until = max(blocked_until, now + retry_after)
    end
else
    booked = 0
    each_booking(function(due, cost)
        if due > now then
            booked = min(booked + cost, EXACT)
        end
    end)
end

-- Until it is full again, and then as long as the values that the upstream reported are useful.
local full = MAX_RETENTION
if restore > 0 then
    full = (maximum - balance) / restore * 1000000
end
local expires_in = min(max(as_of, blocked_until, now) - now + full + RETENTION, MAX_RETENTION)
redis.call('SET', KEYS[1], struct.pack(STATE, epoch, run, maximum, restore, observed, balance, as_of, blocked_until,
    unearned, now, shift, first_due, first_cost, bookings_expire), 'PX', math.ceil(expires_in / 1000))

-- Every process sends a call without requests now and then, to be counted.
if #outcomes == 0 then
    redis.call('ZADD', KEYS[3], clock, caller)
    redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('(%.0f', clock - MEMBER_FOR))
    redis.call('PEXPIRE', KEYS[3], MEMBER_FOR / 1000)
    members = redis.call('ZCARD', KEYS[3])
end

local reply = {
    epoch, now, members, maximum, restore, observed, available(), booked, max(0, as_of - now),
    max(0, blocked_until - now),
}
for at = 1, #outcomes do
    reply[10 + at] = outcomes[at]
end
return reply
