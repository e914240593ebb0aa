local time = redis.call('TIME')
local now = (tonumber(time[1]) - 1700000000) * 10000000 + tonumber(time[2]) * 10
local found = redis.call('GET', KEYS[1])
local offset = tonumber(found or '0')
local expected, tolerance = tonumber(ARGV[1]), tonumber(ARGV[2])
now = now + offset
if expected > 0 and math.abs(now - expected) > tolerance
  and (not found or string.find(ARGV[3], ' ' .. found .. ' ', 1, true))
  and redis.call('ZCOUNT', KEYS[2], string.format('(%.0f', expected + tolerance), string.format('%.0f', now)) == 0
then
  offset = offset + expected - now
  now = expected
  redis.call('SET', KEYS[1], string.format('%.0f', offset), 'PX', 604800000)
end

local replicas = -1
if ARGV[4] ~= '' then
  local counts_for = tonumber(ARGV[5])
  if counts_for > 0 then
    local newest = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
    local heard = now
    if expected == 0 and newest then heard = math.min(now, tonumber(newest)) end
    redis.call('ZADD', KEYS[2], string.format('%.0f', heard), ARGV[4])
  else
    redis.call('ZREM', KEYS[2], ARGV[4])
  end
  counts_for = math.abs(counts_for)
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now - counts_for))
  redis.call('ZREMRANGEBYSCORE', KEYS[2], string.format('%.0f', now + counts_for), '+inf')
  redis.call('PEXPIRE', KEYS[2], math.ceil(counts_for / 10000))
  replicas = redis.call('ZCARD', KEYS[2])
  if offset ~= 0 then redis.call('PEXPIRE', KEYS[1], 604800000) end
end

local reply = {now, replicas, offset}
local at = 6
for i = 3, #KEYS do
  local interval, burst, max_wait = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local ahead, recover, back = tonumber(ARGV[at + 3]), ARGV[at + 4] == '1', tonumber(ARGV[at + 5])
  local debt, since = tonumber(ARGV[at + 6]), tonumber(ARGV[at + 7])
  local want, pairs = tonumber(ARGV[at + 8]), tonumber(ARGV[at + 9])
  at = at + 10
  local function cost(n) return math.ceil(n * interval / 100) end
  local full = cost(burst)
  local stored = tonumber(redis.call('GET', KEYS[i]) or '0')
  local tat = stored
  if stored == 0 or recover then tat = math.max(tat, now + ahead) end
  tat = tat - math.floor(back * interval / 100)
  tat = math.max(math.max(tat, now - since) + cost(debt), now)

  local granted, ready = 0, 0
  for _ = 1, pairs do
    local n, times = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
    at = at + 2
    times = math.min(times, math.floor((now + full + max_wait - tat) / cost(n)))
    if n <= burst and times > 0 then
      granted = granted + n * times
      tat = tat + cost(n) * times
    end
  end
  if granted > 0 then ready = math.max(0, tat - full - now) end
  local spare = math.min(want, math.floor((now + full - tat) * 100 / interval))
  while spare > 0 and tat + cost(spare) > now + full do spare = spare - 1 end
  if spare > 0 then
    granted = granted + spare
    tat = tat + cost(spare)
  end

  if stored > 0 or tat > now then
    local ms = math.ceil((math.max(tat - now, stored - now, full + max_wait)) / 10000) + 60000
    redis.call('SET', KEYS[i], string.format('%.0f', tat), 'PX', string.format('%.0f', ms))
  end
  reply[#reply + 1] = granted
  reply[#reply + 1] = tat - now
  reply[#reply + 1] = ready
end
return reply
