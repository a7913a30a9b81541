-- Takes tokens from a bucket, unless the wait would be too long. Returns how long the bucket needed before that to be
-- full.
--   KEYS[1]  when the bucket is full, in microseconds since 1970
--   ARGV     time to restore one token, time to restore all tokens, maximum wait of this request, and the maximum time that
--            a bucket may need beyond that to be full, in microseconds; number of tokens
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local interval, window, wait, longest = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local debt = (tonumber(redis.call('GET', KEYS[1])) or 0) - now
-- So large a debt is impossible: the clock was set back.
if debt < 0 or debt > window + longest then
  debt = 0
end
-- The wait is that of the first token.
local taken = debt + interval * tonumber(ARGV[5])
if debt + interval - window <= wait then
  redis.call('SET', KEYS[1], string.format('%.0f', now + taken), 'PX', string.format('%.0f', math.ceil(taken / 1000)))
end
return debt
