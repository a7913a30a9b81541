-- Tells all processes what one of them decided about a breaker: keeps it, gives it a version, and publishes it.
--
-- One record a matter (a field), as JSON. A record is newer if its version is higher; versions are microseconds by this
-- server's clock, and each is higher than the last, so that they go on growing after everything here was lost. A breaker
-- that is forced open is not opened for a time or closed by probes: whoever says so has not heard of it yet, and is told.
--
-- A closed one is kept for a while (`read.lua`), so that nobody misses it. `floor` is the highest version that was dropped:
-- who still holds one that is not higher, and does not find it here, holds something that has ended.

local RECORDS = KEYS[1] -- hash: field -> record
local CLOCK = KEYS[2]   -- hash: version, floor, by:<process> -> 'number seconds' of its last word
local CLAIM = KEYS[3]   -- string: the process that probes the breaker (`claim.lua`)

local how = ARGV[1]                 -- 'turn': a change; 'seed': something that stands open there and is missing here
local field, head = ARGV[2], ARGV[3] -- the record's beginning, as JSON without its last brace
local state, why = ARGV[4], ARGV[5]
local remaining = tonumber(ARGV[6]) -- ms, if it is open
local process = ARGV[7]
local number = tonumber(ARGV[8])    -- of the change; of a seed, its version
local channel, lasts = ARGV[9], ARGV[10]
local most = tonumber(ARGV[11])     -- records

local call = redis.call
local time = call('TIME')
local seconds = tonumber(time[1])
local now = seconds * 1000000 + tonumber(time[2])
local now_ms = math.floor(now / 1000)

local function whole(value)
    return string.format('%.0f', value)
end

local present = call('HGET', RECORDS, field)
local known = present and cjson.decode(present)
if known and known.state == 'open' and known.until_ms <= now_ms then
    present, known = nil, nil
end

if how == 'turn' then
    -- What was given up for lost may still arrive, after what came later.
    local last = call('HGET', CLOCK, 'by:' .. process)
    if last and tonumber(last:match('^%d+')) >= number then
        return { 'kept', now_ms, present or '' }
    end
    call('HSET', CLOCK, 'by:' .. process, whole(number) .. ' ' .. whole(seconds))
    local weak = state == 'open' or (state == 'closed' and why == 'probes_succeeded')
    if weak and known and known.state == 'forced_open' then
        return { 'kept', now_ms, present }
    end
else
    if present then
        return { 'kept', now_ms, present }
    end
    local floor = tonumber(call('HGET', CLOCK, 'floor') or '0')
    if number <= floor then
        return { 'gone', now_ms, whole(floor) }
    end
end
if not present and call('HLEN', RECORDS) >= most then
    return { 'full', now_ms, '' }
end

local version = math.max(now, tonumber(call('HGET', CLOCK, 'version') or '0') + 1)
local record = head .. ',"version":"' .. whole(version) .. '","ms":' .. whole(remaining)
    .. ',"until_ms":' .. whole(now_ms + remaining) .. '}'
call('HSET', CLOCK, 'version', whole(version))
call('HSET', RECORDS, field, record)
call('PEXPIRE', CLOCK, lasts)
call('PEXPIRE', RECORDS, lasts)
-- The process that probes has told what it found.
if call('GET', CLAIM) == process then
    call('DEL', CLAIM)
end
call('PUBLISH', channel, record)
return { 'told', now_ms, record }
