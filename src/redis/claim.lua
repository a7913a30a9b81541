-- Claims the probe of a half-open breaker for one process. The claim ends when the process tells what it found (`tell.lua`),
-- or expires. A process that has the claim may renew it.
--
-- Answers 0 if it was granted, else for how many ms another process has it.

local CLAIM = KEYS[1]
local process, lasting = ARGV[1], ARGV[2]

local holder = redis.call('GET', CLAIM)
if holder and holder ~= process then
    return math.max(redis.call('PTTL', CLAIM), 1)
end
redis.call('SET', CLAIM, process, 'PX', lasting)
return 0
