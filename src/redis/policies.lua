-- Takes tokens of a bucket, unless that would mean too long a wait. Answers how long the bucket needed to be full before.
--   KEYS[1]  when the bucket is full, in microseconds since 1970
--   ARGV     how long a token takes to come back, how long all of them do, how long this one may wait, and the longest
--            that a bucket may need to be full beyond that, in microseconds; how many tokens
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local interval, window, wait, longest = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local debt = (tonumber(redis.call('GET', KEYS[1])) or 0) - now
-- Nobody can owe so much: the clock was set back.
if debt < 0 or debt > window + longest then
  debt = 0
end
-- The wait is that of the first token.
local taken = debt + interval * tonumber(ARGV[5])
if debt + interval - window <= wait then
  redis.call('SET', KEYS[1], string.format('%.0f', now + taken), 'PX', string.format('%.0f', math.ceil(taken / 1000)))
end
return debt
