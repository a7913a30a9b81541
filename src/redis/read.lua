-- Returns all published breaker records (`publish.lua`), without those that have ended.

local RECORDS = KEYS[1]
local CLOCK = KEYS[2]

local closed_lasts = tonumber(ARGV[1]) -- ms: how long a closed breaker is stored
local process_lasts = tonumber(ARGV[2]) -- seconds: how long the number of a process's last change is stored
local lasts = ARGV[3]

local call = redis.call
local time = call('TIME')
local seconds = tonumber(time[1])
local now = seconds * 1000000 + tonumber(time[2])
local now_ms = math.floor(now / 1000)

local reply = { now_ms }
local dropped = 0
local all = call('HGETALL', RECORDS)
for at = 1, #all, 2 do
    local field, text = all[at], all[at + 1]
    local record = cjson.decode(text)
    local version = tonumber(record.version)
    local ended = (record.state == 'open' and record.until_ms <= now_ms)
        or (record.state == 'closed' and now - version > closed_lasts * 1000)
    if ended then
        call('HDEL', RECORDS, field)
        dropped = math.max(dropped, version)
    else
        reply[#reply + 1] = text
    end
end

if dropped > tonumber(call('HGET', CLOCK, 'floor') or '0') then
    call('HSET', CLOCK, 'floor', string.format('%.0f', dropped))
end
local clock = call('HGETALL', CLOCK)
for at = 1, #clock, 2 do
    local changed_at = clock[at]:sub(1, 3) == 'by:' and clock[at + 1]:match(' (%d+)$')
    if changed_at and seconds - tonumber(changed_at) > process_lasts then
        call('HDEL', CLOCK, clock[at])
    end
end
call('PEXPIRE', RECORDS, lasts)
call('PEXPIRE', CLOCK, lasts)
return reply
