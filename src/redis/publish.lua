-- Publishes a change of a breaker to all processes: stores it, gives it a version, and publishes it.
--
-- One record for each breaker (a field), as JSON. A record is newer if its version is higher. Versions are microseconds
-- by this server's clock, and each is higher than the last, so that they continue to grow after all data here was lost.
-- A breaker that is forced open is not opened for a time or closed by probes: a process that tries has not received the
-- change yet, and gets it as the response.
--
-- A closed breaker is stored for a while (`read.lua`), so that no process misses it. `floor` is the highest version
-- that was dropped: a process that holds a version that is not higher, and does not find it here, holds a record that
-- has ended.

local RECORDS = KEYS[1] -- hash: field -> record
local CLOCK = KEYS[2]   -- hash: version, floor, by:<process> -> 'number seconds' of its last change
local CLAIM = KEYS[3]   -- string: the process that probes the breaker (`claim.lua`)

local command = ARGV[1]             -- 'change': a change; 'seed': a breaker that is open there and missing here
local field, head = ARGV[2], ARGV[3] -- the start of the record, as JSON without its last brace
local state, why = ARGV[4], ARGV[5]
local remaining = tonumber(ARGV[6]) -- ms, if it is open
local process = ARGV[7]
local number = tonumber(ARGV[8])    -- of the change; for a seed, its version
local channel, retention = ARGV[9], ARGV[10]
local max_records = tonumber(ARGV[11]) -- maximum number of records

local call = redis.call
local time = call('TIME')
local seconds = tonumber(time[1])
local now = seconds * 1000000 + tonumber(time[2])
local now_ms = math.floor(now / 1000)

local function whole(value)
    return string.format('%.0f', value)
end

local present = call('HGET', RECORDS, field)
local current = present and cjson.decode(present)
if current and current.state == 'open' and current.until_ms <= now_ms then
    present, current = nil, nil
end

if command == 'change' then
    -- A call that its sender considers lost may still arrive, after later ones.
    local last = call('HGET', CLOCK, 'by:' .. process)
    if last and tonumber(last:match('^%d+')) >= number then
        return { 'existing', now_ms, present or '' }
    end
    call('HSET', CLOCK, 'by:' .. process, whole(number) .. ' ' .. whole(seconds))
    local weak = state == 'open' or (state == 'closed' and why == 'probes_succeeded')
    if weak and current and current.state == 'forced_open' then
        return { 'existing', now_ms, present }
    end
else
    if present then
        return { 'existing', now_ms, present }
    end
    local floor = tonumber(call('HGET', CLOCK, 'floor') or '0')
    if number <= floor then
        return { 'ended', now_ms, whole(floor) }
    end
end
if not present and call('HLEN', RECORDS) >= max_records then
    return { 'full', now_ms, '' }
end

local version = math.max(now, tonumber(call('HGET', CLOCK, 'version') or '0') + 1)
local record = head .. ',"version":"' .. whole(version) .. '","ms":' .. whole(remaining)
    .. ',"until_ms":' .. whole(now_ms + remaining) .. '}'
call('HSET', CLOCK, 'version', whole(version))
call('HSET', RECORDS, field, record)
call('PEXPIRE', CLOCK, retention)
call('PEXPIRE', RECORDS, retention)
-- The process that probes has reported its result.
if call('GET', CLAIM) == process then
    call('DEL', CLAIM)
end
call('PUBLISH', channel, record)
return { 'published', now_ms, record }
