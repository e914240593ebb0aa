-- bench/wrk.lua's requests, each by the next of n keys and for the next of m models: for python -m bench.growth.
dofile("bench/wrk.lua")

local plain = init
local requests, turn = {}, 0

-- args: the file of the body, a key, how many keys (0: that one), how many models (0: the body's own).
function init(args)
  plain(args)
  local n_keys, n_models = tonumber(args[3]), tonumber(args[4])
  for i = 1, math.max(n_keys, n_models) do
    local headers = {}
    for name, value in pairs(wrk.headers) do headers[name] = value end
    if n_keys > 0 then headers["Authorization"] = string.format("Bearer %s-%d", args[2], (i - 1) % n_keys) end
    local body = wrk.body
    if n_models > 0 then body = body:gsub("gpt%-bench", string.format("model-%d", (i - 1) % n_models), 1) end
    requests[i] = wrk.format(nil, nil, headers, body)
  end
end

function request()
  turn = turn % #requests + 1
  return requests[turn]
end
