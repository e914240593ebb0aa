-- What wrk sends, and what it says at the end: one line of JSON. bench/wrk_requests.py writes the file of requests.
-- args: that file, a number that no other run has, how many keys there are, how many models.
-- In a request "\1I" stands for an id that is new each time, "\1K" for the number of the next key, "\1M" for that of
-- the next model.
local requests, made = {}, {}
local turn, id, n_keys, n_models
local n_threads = 0

function setup(thread)
  thread:set("own", n_threads)
  n_threads = n_threads + 1
end

-- Return the texts between the marks of a request, and the marks.
local function divided(text)
  local texts, marks, at = {}, {}, 1
  while true do
    local mark = text:find("\1", at, true)
    texts[#texts + 1] = text:sub(at, (mark or 0) - 1)
    if not mark then return { texts = texts, marks = marks } end
    marks[#marks + 1] = text:sub(mark + 1, mark + 1)
    at = mark + 2
  end
end

function init(args)
  local file = assert(io.open(args[1], "rb"))
  while true do
    local size = file:read("*n")
    if not size then break end
    file:read(1)
    requests[#requests + 1] = divided(file:read(size))
  end
  id = tonumber(args[2]) + own * 1e6
  turn = id
  n_keys, n_models = tonumber(args[3]), tonumber(args[4])
end

local function value(mark)
  if mark == "K" then return tostring(turn % n_keys) end
  if mark == "M" then return string.format("%06d", turn % n_models) end
  id = id + 1
  return string.format("%06x%06x", id * 7919 % 16777216, id % 16777216)
end

function request()
  turn = turn + 1
  local next = requests[turn % #requests + 1]
  local texts, marks = next.texts, next.marks
  if #marks == 0 then return texts[1] end
  for i = 1, #marks do
    made[2 * i - 1] = texts[i]
    made[2 * i] = value(marks[i])
  end
  local last = 2 * #marks + 1
  made[last] = texts[#texts]
  return table.concat(made, "", 1, last)
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '{"requests":%d,"seconds":%.6f,"errors":%d,"p50_ms":%.3f,"p99_ms":%.3f}\n',
    summary.requests, summary.duration / 1e6, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
