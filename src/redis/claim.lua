-- Claims the probe of a half-open breaker for one process. The claim ends when the process reports its result
-- (`publish.lua`), or expires. The process that holds the claim may renew it.
--
-- Returns 0 if it was granted, else for how many ms another process holds it.

local CLAIM = KEYS[1]
local process, lasting = ARGV[1], ARGV[2]

local holder = redis.call('GET', CLAIM)
if holder and holder ~= process then
    return math.max(redis.call('PTTL', CLAIM), 1)
end
redis.call('SET', CLAIM, process, 'PX', lasting)
return 0
