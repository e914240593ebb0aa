"""The script that Redis runs: the buckets of all gateways, in Redis' own time.

Knows: GCRA, as policy.token_bucket has it, for many buckets at once. Does not know: who asks (lease_redis.py).

    KEYS   the clock's offset, the gateways' last signs of life, then one a bucket
    ARGV   what the asker takes the time for (0: it has no idea) and by how much it may err, its name, for how long a
           gateway counts; then for each bucket: interval, burst, max_wait, ahead, recover, back, debt, since, want, and
           the number of pairs (permits, how often)
    reply  the time, the number of gateways (-1: no name was given); then for each bucket: permits granted, by how much
           the TAT is ahead of now, and in how much the granted ones may be used

Times are in units of 100 ns since 2023-11-14, so that a Lua number (53 bits) holds them exactly until 2052. What a
permit costs is rounded up to such a unit and what is given back is rounded down: too little, never too much.

A bucket that is not there is full, or was lost: by a restart, a failover, an eviction. Who asks says how far ahead it
knows the TAT to be (below 0: how far behind), and that is where a lost bucket starts. One that is there counts as it
is, since others may have given permits back meanwhile; unless the connection is new (recover), and the server may lag
behind: then the later TAT counts. A key outlives the longest TAT that anybody may know of by a minute, so that one
which ended by itself is not taken for lost.

A debt is what was used before it was asked for, at some time in the last `since`: it counts as if all of it had been
used at the beginning of that, so a gateway that was on its own for long is not charged for the time that has passed.

Redis' time may jump, by hand or by a failover to a machine whose clock is another. The asker says what the time should
be, by its own clock's steps since the last answer; if that is not so, the offset is changed until it is. Only steps
count, so no gateway needs the right time.

All keys have one hash tag, {velox}: on a cluster they are in one slot, as one script needs them to be.
"""

from __future__ import annotations

from typing import Final

__all__ = ["SCRIPT", "UNIT_NS"]

UNIT_NS: Final = 100

SCRIPT: Final = """
local time = redis.call('TIME')
local now = (tonumber(time[1]) - 1700000000) * 10000000 + tonumber(time[2]) * 10
local offset = tonumber(redis.call('GET', KEYS[1]) or '0')
local expected = tonumber(ARGV[1])
now = now + offset
if expected > 0 and math.abs(now - expected) > tonumber(ARGV[2]) then
  offset = offset + expected - now
  now = expected
  redis.call('SET', KEYS[1], string.format('%.0f', offset), 'PX', 604800000)
end

local replicas = -1
if ARGV[3] ~= '' then
  local counts_for = tonumber(ARGV[4])
  if counts_for > 0 then
    redis.call('ZADD', KEYS[2], string.format('%.0f', now), ARGV[3])
  else
    redis.call('ZREM', KEYS[2], ARGV[3])
  end
  counts_for = math.abs(counts_for)
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now - counts_for))
  redis.call('ZREMRANGEBYSCORE', KEYS[2], string.format('%.0f', now + counts_for), '+inf')
  redis.call('PEXPIRE', KEYS[2], math.ceil(counts_for / 10000))
  replicas = redis.call('ZCARD', KEYS[2])
  if offset ~= 0 then redis.call('PEXPIRE', KEYS[1], 604800000) end
end

local reply = {now, replicas}
local at = 5
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
"""
