-- The keeper of the common count of invalid requests behind one address: `guildhall_core::invalid::Keeper`, inside Redis.
--
-- It lends: what is counted in the window and what all processes may still add unasked (`ceiling - acknowledged`) never add
-- up to more than the limit. A process lowers its ceiling before it says so, and what it says is true whether it hears the
-- answer or not; so what is kept here is never less than what the process holds.
--
-- Times are milliseconds by this server's clock. All numbers are whole and below 2^53.

local LEDGER = KEYS[1]
-- hash: s:<slot> -> how many; p:<process> -> 'acknowledged ceiling in_flight number heard';
--       born, server -> since when this knows of everything, and on which server;
--       drawn -> what was lent out of the reserve since then;
--       remembered -> 'count until', holders, returned -> what processes knew of before that

local how, process = ARGV[1], ARGV[2] -- 'sync' or 'leave'
local number = tonumber(ARGV[3])      -- of the question: one that was given up for lost may still arrive after the next
local counted, unacknowledged = tonumber(ARGV[4]), tonumber(ARGV[5])
local in_flight, ceiling = tonumber(ARGV[6]), tonumber(ARGV[7])
local total, holders = tonumber(ARGV[8]), tonumber(ARGV[9])
local limit, window = tonumber(ARGV[10]), tonumber(ARGV[11])
local server = ARGV[12]

local SLOTS = 60
-- The places of a silent process are held for its lease, the window after that, and the longest call.
local HOLD = 2 * window + 60 * 1000
-- One that knows nothing lends only out of its reserve for so long: those who know come and tell.
local SETTLING = 3 * 1000
-- One part in so many of the limit is that reserve, and lent at no other time.
local RESERVE = 40
-- Heard within this, a process is a member.
local RECENT = 5 * 1000
-- What one process is lent beyond its calls under way: one part in so many of what is free. And of the limit, at most.
local PARTS = 10
-- More processes than that cannot be heard.
local MOST = 1000

local call, max, min, floor = redis.call, math.max, math.min, math.floor

local function whole(value)
    return string.format('%.0f', value)
end

local time = call('TIME')
local now = tonumber(time[1]) * 1000 + floor(tonumber(time[2]) / 1000)
local width = max(floor(window / SLOTS), 1)

local slots, others, fields = {}, {}, {}
local mine
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
        local a, c, f, n, heard = value:match('^(%d+) (%d+) (%d+) (%d+) (%d+)$')
        local entry = { acknowledged = tonumber(a), ceiling = tonumber(c), in_flight = tonumber(f), number = tonumber(n),
            heard = tonumber(heard) }
        if now - entry.heard > HOLD then
            call('HDEL', LEDGER, field)
        elseif name == process then
            mine = entry
        else
            others[#others + 1] = entry
        end
    else
        fields[field] = value
    end
end

if mine and mine.number >= number then
    return {}
end
if not mine and #others >= MOST then
    return {}
end

-- Since when it knows of everything.
local born, drawn = tonumber(fields.born or now), tonumber(fields.drawn or '0')
if not fields.born or fields.server ~= server then
    born, drawn = now, 0
    call('HSET', LEDGER, 'born', whole(born), 'server', server, 'drawn', '0')
end

-- What processes remember of before.
local remembered, remembered_until = 0, 0
if fields.remembered then
    local count, leaves = fields.remembered:match('^(%d+) (%d+)$')
    if tonumber(leaves) > now then
        remembered, remembered_until = tonumber(count), tonumber(leaves)
    end
end
local expected, returned = tonumber(fields.holders or '0'), tonumber(fields.returned or '0')

-- Counts what is new.
local new
if mine then
    new = max(counted - mine.acknowledged, 0)
else
    new = unacknowledged
    if total > remembered then
        remembered, remembered_until = total, now + window
        call('HSET', LEDGER, 'remembered', whole(remembered) .. ' ' .. whole(remembered_until))
    end
    if holders > 0 then
        expected, returned = max(expected, holders), returned + 1
        call('HSET', LEDGER, 'holders', whole(expected), 'returned', whole(returned))
    end
end
if how == 'leave' then
    -- Nobody will be there to count what is still under way.
    new = new + in_flight
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
local lent, members, elsewhere = 0, 1, 0
for _, entry in ipairs(others) do
    lent = lent + max(entry.ceiling - entry.acknowledged, 0)
    if now - entry.heard < RECENT then
        members = members + 1
        elsewhere = elsewhere + entry.in_flight
    end
end

call('PEXPIRE', LEDGER, whole(HOLD + window))
if how == 'leave' then
    call('HDEL', LEDGER, 'p:' .. process)
    return {}
end

-- Lends what it can.
local most = max(floor(limit / PARTS), 1)
local reserve = floor(limit / RESERVE)
local missing = 0
if now - born < HOLD then
    missing = max(expected - returned, 0)
end
local free = limit - reserve - used - lent - missing * most
local room = max(free - in_flight, 0)
local more = 0
if room > 0 then
    more = max(floor(room / PARTS), 1)
end
local granted = counted + min(in_flight + more, most)
if now - born < SETTLING then
    local wanted = counted + min(in_flight + max(floor(reserve / PARTS), 1), most)
    granted = min(granted, max(ceiling, min(wanted, ceiling + max(reserve - drawn, 0))))
    if granted > ceiling then
        call('HSET', LEDGER, 'drawn', whole(drawn + granted - ceiling))
    end
end
call('HSET', LEDGER, 'p:' .. process, whole(counted) .. ' ' .. whole(max(ceiling, granted)) .. ' ' .. whole(in_flight)
    .. ' ' .. whole(number) .. ' ' .. whole(now))

if remembered > 0 then
    slots[#slots + 1] = { remembered_until, remembered }
end
table.sort(slots, function(one, other)
    return one[1] < other[1] or (one[1] == other[1] and one[2] < other[2])
end)
local answer = { granted, members, #others + 1 + missing, elsewhere }
for _, slot in ipairs(slots) do
    answer[#answer + 1] = slot[1] - now
    answer[#answer + 1] = slot[2]
end
return answer
