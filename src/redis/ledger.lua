-- The lender of the shared count of invalid requests behind one address: `guildhall_core::invalid::Lender`, inside
-- Redis.
--
-- It lends: the count in the window, plus what all processes may still add without a request (`ceiling -
-- acknowledged`), never exceeds the limit. A process lowers its ceiling before it reports that, and its report holds
-- whether it receives the response or not; so what is stored here is never less than what the process holds.
--
-- Times are milliseconds by this server's clock. All numbers are integers below 2^53.

local LEDGER = KEYS[1]
-- hash: s:<slot> -> count; p:<process> -> 'acknowledged ceiling in_flight exposure number reported_at';
--       born, server -> since when this state is complete, and on which server;
--       drawn -> what was lent from the reserve since then;
--       remembered -> 'count until', holders, returned -> what processes reported of the time before that;
--       drawn_exposure -> what was granted from the reserve of exposure since then;
--       remembered_exposure, returned_exposure -> what all processes could add for one holder before that, and the part of it
--       of those that have reported since;
--       h:<holder> -> a holder that may be large; r:<holder> -> 'count until', what processes reported of it
-- KEYS[2], [3], [4] -> one generation of counts each, one window long: <holder> -> '<slot>=<count> <slot>=<count> …';
--       generation -> its number. A holder is k:<key>, t:<tenant> or g:<guild>.

local command, process = ARGV[1], ARGV[2] -- 'sync' or 'leave'
local number = tonumber(ARGV[3])      -- of the request: one that its sender considers lost may still arrive after the next
local counted, unacknowledged = tonumber(ARGV[4]), tonumber(ARGV[5])
local in_flight, ceiling = tonumber(ARGV[6]), tonumber(ARGV[7])
local total, holders = tonumber(ARGV[8]), tonumber(ARGV[9])
local limit, window = tonumber(ARGV[10]), tonumber(ARGV[11])
local server = ARGV[12]
local cap, exposure, exposure_of_others = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])
-- then: the number of runs and of large holders; for each run its start, its end, and up to three holders; for each
-- large holder its name and its count
local runs, remembers = tonumber(ARGV[16]), tonumber(ARGV[17])
local FIRST_RUN = 18
local FIRST_LARGE = FIRST_RUN + 5 * runs

local SLOTS = 60
-- The loan of a silent process is held for its lease, the window after that, and the longest call.
local HOLD = 2 * window + 60 * 1000
-- A new state lends only from its reserve for this long, until processes have reported what they know.
local SETTLING = 3 * 1000
-- The reserve is the limit divided by this. It is lent at no other time.
local RESERVE = 40
-- A process that reported within this time is a member.
local RECENT = 5 * 1000
-- One process is lent, beyond its calls in flight, the free amount divided by this; at most the limit divided by this.
local PARTS = 10
-- One process may add for one holder, without a request, the free exposure divided by this.
local EXPOSURE_PARTS = 8
-- Maximum number of processes.
local MAX_PROCESSES = 1000
-- A holder is large, and listed, from its maximum divided by this.
local LARGE = 8
-- Maximum number of large holders that one process can report.
local MAX_LARGE = 1000

local call, max, min, floor = redis.call, math.max, math.min, math.floor

local function whole(value)
    return string.format('%.0f', value)
end

local time = call('TIME')
local now = tonumber(time[1]) * 1000 + floor(tonumber(time[2]) / 1000)
local width = max(floor(window / SLOTS), 1)

local slots, others, fields = {}, {}, {}
local maybe_large, remembered_of = {}, {}
local own_entry
local all = call('HGETALL', LEDGER)
for at = 1, #all, 2 do
    local field, value = all[at], all[at + 1]
    local kind, name = field:sub(1, 2), field:sub(3)
    if kind == 's:' then
        local leaves = (tonumber(name) + 1) * width + window
        if leaves <= now then
            call('HDEL', LEDGER, field)
        else
            slots[#slots + 1] = { leaves, tonumber(value) }
        end
    elseif kind == 'p:' then
        local a, c, f, e, n, reported_at = value:match('^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
        local entry = { acknowledged = tonumber(a), ceiling = tonumber(c), in_flight = tonumber(f), exposure = tonumber(e),
            number = tonumber(n), reported_at = tonumber(reported_at) }
        -- An unreadable entry is from an earlier version, which no longer runs.
        if not entry.reported_at or now - entry.reported_at > HOLD then
            call('HDEL', LEDGER, field)
        elseif name == process then
            own_entry = entry
        else
            others[#others + 1] = entry
        end
    elseif kind == 'h:' then
        maybe_large[name] = true
    elseif kind == 'r:' then
        local count, leaves = value:match('^(%d+) (%d+)$')
        if tonumber(leaves) <= now then
            call('HDEL', LEDGER, field)
        else
            remembered_of[name] = { tonumber(leaves), tonumber(count) }
        end
    else
        fields[field] = value
    end
end

-- The counts of holders, by generation: counts older than the last two have left the window.
local generation = floor(now / (window + width))

local function generation_key(number)
    return KEYS[2 + number % 3]
end

-- The counts of a holder, each with the time at which it leaves the window.
local function counted_of(holder)
    local found = {}
    for back = 0, 1 do
        local key, wanted = generation_key(generation - back), whole(generation - back)
        if call('HGET', key, 'generation') == wanted then
            for slot, count in (call('HGET', key, holder) or ''):gmatch('(%d+)=(%d+)') do
                local leaves = (tonumber(slot) + 1) * width + window
                if leaves > now then
                    found[#found + 1] = { leaves, tonumber(count) }
                end
            end
        end
    end
    return found
end

local function sum_of(counts)
    local sum = 0
    for _, one in ipairs(counts) do
        sum = sum + one[2]
    end
    return sum
end

-- Adds new requests to the count of a holder.
local function charge(holder, new)
    local key, slot = generation_key(generation), whole(floor(now / width))
    if call('HGET', key, 'generation') ~= whole(generation) then
        call('DEL', key)
        call('HSET', key, 'generation', whole(generation))
        call('PEXPIRE', key, whole(3 * (window + width)))
    end
    local before = call('HGET', key, holder) or ''
    local rest, last, count = before:match('^(.-)(%d+)=(%d+) $')
    if last == slot then
        call('HSET', key, holder, rest .. slot .. '=' .. whole(tonumber(count) + new) .. ' ')
    else
        call('HSET', key, holder, before .. slot .. '=' .. whole(new) .. ' ')
    end
end

if own_entry and own_entry.number >= number then
    return {}
end
if not own_entry and #others >= MAX_PROCESSES then
    return {}
end

-- Since when the state is complete.
local started, drawn = tonumber(fields.born or now), tonumber(fields.drawn or '0')
local drawn_exposure = tonumber(fields.drawn_exposure or '0')
if not fields.born or fields.server ~= server then
    started, drawn, drawn_exposure = now, 0, 0
    call('HSET', LEDGER, 'born', whole(started), 'server', server, 'drawn', '0', 'drawn_exposure', '0')
end

-- What processes reported of the time before that.
local remembered, remembered_until = 0, 0
if fields.remembered then
    local count, leaves = fields.remembered:match('^(%d+) (%d+)$')
    if tonumber(leaves) > now then
        remembered, remembered_until = tonumber(count), tonumber(leaves)
    end
end
local expected, returned = tonumber(fields.holders or '0'), tonumber(fields.returned or '0')
local remembered_exposure = tonumber(fields.remembered_exposure or '0')
local returned_exposure = tonumber(fields.returned_exposure or '0')

-- Adds new requests.
local new
if own_entry then
    new = max(counted - own_entry.acknowledged, 0)
else
    new = unacknowledged
    if total > remembered then
        remembered, remembered_until = total, now + window
        call('HSET', LEDGER, 'remembered', whole(remembered) .. ' ' .. whole(remembered_until))
    end
    for at = 0, min(remembers, MAX_LARGE) - 1 do
        local holder, count = ARGV[FIRST_LARGE + 2 * at], tonumber(ARGV[FIRST_LARGE + 2 * at + 1])
        local known = remembered_of[holder]
        if not known or count > known[2] then
            remembered_of[holder] = { now + window, count }
            call('HSET', LEDGER, 'r:' .. holder, whole(count) .. ' ' .. whole(now + window))
        end
    end
    if holders > 0 then
        expected, returned = max(expected, holders), returned + 1
        remembered_exposure = max(remembered_exposure, exposure + exposure_of_others)
        returned_exposure = returned_exposure + exposure
        call('HSET', LEDGER, 'holders', whole(expected), 'returned', whole(returned), 'remembered_exposure',
            whole(remembered_exposure), 'returned_exposure', whole(returned_exposure))
    end
end
if command == 'leave' then
    -- No process will count the calls that are still in flight.
    new = new + in_flight
end
local large = max(floor(cap / LARGE), 1)
local known_to = counted - unacknowledged
if own_entry then
    known_to = own_entry.acknowledged
end
for at = 0, runs - 1 do
    local first = FIRST_RUN + 5 * at
    local start, last = tonumber(ARGV[first]), tonumber(ARGV[first + 1])
    local more = last - max(start, known_to)
    for which = 2, 4 do
        local holder = ARGV[first + which]
        if more > 0 and holder ~= '' then
            charge(holder, more)
            if not maybe_large[holder] and sum_of(counted_of(holder)) >= large then
                maybe_large[holder] = true
                call('HSET', LEDGER, 'h:' .. holder, '1')
            end
        end
    end
end
if new > 0 then
    local slot = floor(now / width)
    local leaves = (slot + 1) * width + window
    call('HINCRBY', LEDGER, 's:' .. whole(slot), whole(new))
    local present
    for _, other in ipairs(slots) do
        if other[1] == leaves then
            present = other
        end
    end
    if present then
        present[2] = present[2] + new
    else
        slots[#slots + 1] = { leaves, new }
    end
end

local used = remembered
for _, slot in ipairs(slots) do
    used = used + slot[2]
end
local lent, members, elsewhere, exposed = 0, 1, 0, 0
for _, entry in ipairs(others) do
    lent = lent + max(entry.ceiling - entry.acknowledged, 0)
    exposed = exposed + entry.exposure
    if now - entry.reported_at < RECENT then
        members = members + 1
        elsewhere = elsewhere + entry.in_flight
    end
end

call('PEXPIRE', LEDGER, whole(HOLD + window))
if command == 'leave' then
    call('HDEL', LEDGER, 'p:' .. process)
    return {}
end

-- Lends what is free.
local most = max(floor(limit / PARTS), 1)
local reserve = floor(limit / RESERVE)
local missing = 0
if now - started < HOLD then
    missing = max(expected - returned, 0)
end
local free = limit - reserve - used - lent - missing * most
local room = max(free - in_flight, 0)
local more = 0
if room > 0 then
    more = max(floor(room / PARTS), 1)
end
local granted = counted + min(in_flight + more, most)
if now - started < SETTLING then
    local wanted = counted + min(in_flight + max(floor(reserve / PARTS), 1), most)
    granted = min(granted, max(ceiling, min(wanted, ceiling + max(reserve - drawn, 0))))
    if granted > ceiling then
        call('HSET', LEDGER, 'drawn', whole(drawn + granted - ceiling))
    end
end

-- What a process may add for any one holder without a request: all together half of a holder's maximum, each a part of
-- what is free.
local half = max(floor(cap / 2), 1)
local unknown = 0
if missing > 0 then
    unknown = max(remembered_exposure - returned_exposure, 0)
end
local fair = max(floor(half / (#others + 1 + missing)), 1)
local free_exposure = max(half - exposed - unknown, 0)
local granted_exposure = min(fair, max(floor(free_exposure / EXPOSURE_PARTS), 1), free_exposure)
local elsewhere_exposure = exposed + unknown
if now - started < SETTLING then
    local little_reserve = floor(cap / PARTS)
    local little = min(max(floor(little_reserve / 4), 1), exposure + max(little_reserve - drawn_exposure, 0))
    granted_exposure = min(granted_exposure, max(exposure, little))
    elsewhere_exposure = half + little_reserve
    if granted_exposure > exposure then
        call('HSET', LEDGER, 'drawn_exposure', whole(drawn_exposure + granted_exposure - exposure))
    end
end
call('HSET', LEDGER, 'p:' .. process, whole(counted) .. ' ' .. whole(max(ceiling, granted)) .. ' ' .. whole(in_flight)
    .. ' ' .. whole(max(exposure, granted_exposure)) .. ' ' .. whole(number) .. ' ' .. whole(now))

if remembered > 0 then
    slots[#slots + 1] = { remembered_until, remembered }
end
-- Maximum count of a holder that is not listed. What was lost when this state began was less for all that were not
-- reported.
local floor_of_all, forgotten = large - 1, nil
if now - started < window and large > 1 then
    forgotten = { started + window, large - 1 }
    floor_of_all = 2 * (large - 1)
end
local reply = { granted, members, #others + 1 + missing, elsewhere, granted_exposure, elsewhere_exposure, floor_of_all }

local function add(counts)
    table.sort(counts, function(one, other)
        return one[1] < other[1] or (one[1] == other[1] and one[2] < other[2])
    end)
    reply[#reply + 1] = #counts
    for _, one in ipairs(counts) do
        reply[#reply + 1] = one[1] - now
        reply[#reply + 1] = one[2]
    end
end

add(slots)
for holder in pairs(remembered_of) do
    maybe_large[holder] = true
end
for holder in pairs(maybe_large) do
    local counts = counted_of(holder)
    counts[#counts + 1] = remembered_of[holder]
    if sum_of(counts) >= large then
        counts[#counts + 1] = forgotten
        reply[#reply + 1] = holder
        add(counts)
    elseif not remembered_of[holder] then
        call('HDEL', LEDGER, 'h:' .. holder)
    end
end
return reply
