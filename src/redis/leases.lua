-- Leases: named locks that expire, by this server's clock.
--
-- KEYS  1 the lease while it is held, with the remaining time as its TTL: token, fence and holder, separated by spaces
--       2 the last fence
-- ARGV  1 acquire | renew | release     2 the token     3 the duration, in ms     4 the holder
-- Returns the fence of the lease if the request succeeded, else 0
--
-- A fence is the time in microseconds, or one more than the last fence if that is not less: fences continue to grow
-- after all data here was lost. Such numbers are exact until the year 2255.

local LEASE, FENCE = KEYS[1], KEYS[2]
local command, token, ttl, holder = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local FENCE_FOR_MS = 7 * 24 * 3600 * 1000

local call = redis.call
local held = call('GET', LEASE)

if command == 'acquire' then
    if held then
        return 0
    end
    local time = call('TIME')
    local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
    local fence = math.max(now, tonumber(call('GET', FENCE) or '0') + 1)
    local written = string.format('%.0f', fence)
    call('SET', FENCE, written, 'PX', FENCE_FOR_MS)
    call('SET', LEASE, token .. ' ' .. written .. ' ' .. holder, 'PX', ttl)
    return fence
end

local its_token, its_fence
if held then
    its_token, its_fence = held:match('^(%x+) (%d+) ')
end
if its_token ~= token then
    return 0
end
if command == 'renew' then
    call('PEXPIRE', LEASE, ttl)
else
    call('DEL', LEASE)
end
return tonumber(its_fence)
