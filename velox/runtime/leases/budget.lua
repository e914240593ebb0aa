local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local seen, replica, made, grace, number = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local function text(n) return string.format('%.0f', n) end

local last = tonumber(redis.call('GET', KEYS[2]) or '0')
if number <= last then return {'late', text(last)} end
redis.call('SET', KEYS[2], text(number), 'PX', 3600000)

local head = redis.call('HMGET', KEYS[1], 'life', 'unsure')
local life, unsure = head[1], tonumber(head[2] or '0')
if not life then
  life = made
  if seen ~= '' then unsure = now + grace end
  redis.call('HSET', KEYS[1], 'life', life, 'unsure', text(unsure))
elseif seen ~= '' and seen ~= life then
  unsure = now + grace
  redis.call('HSET', KEYS[1], 'unsure', text(unsure))
end
redis.call('PEXPIRE', KEYS[1], 4000000000)
-- After a step of the clock nobody waits longer than usual.
local is_unsure = unsure > now and unsure <= now + grace

local reply = {life, is_unsure and 1 or 0}
local at = 6
for i = 3, #KEYS do
  local limit, used, spent, had = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local needs, least, parts, ttl = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6]), ARGV[at + 7]
  at = at + 8
  local found = redis.call('HMGET', KEYS[i], 'granted', 'spent', 'g' .. replica, 's' .. replica)
  for n = 1, 4 do found[n] = tonumber(found[n] or '0') end
  local taken, elsewhere = math.max(0, found[1] - found[3]), math.max(0, found[2] - found[4])
  local free = math.max(0, limit - taken)
  local grant = math.min(had, free)
  if not is_unsure and used + least <= free then
    local target = math.min(used + needs, free)
    grant = math.max(grant, target + math.floor((free - target) / parts))
  end
  local mine = math.max(grant, used, had)
  if mine ~= found[3] or spent ~= found[4] then
    redis.call('HSET', KEYS[i], 'granted', text(taken + mine), 'spent', text(elsewhere + spent),
      'g' .. replica, text(mine), 's' .. replica, text(spent))
  end
  redis.call('PEXPIRE', KEYS[i], ttl)
  reply[#reply + 1] = text(grant)
  reply[#reply + 1] = text(elsewhere)
  reply[#reply + 1] = text(taken)
end
return reply
