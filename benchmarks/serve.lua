-- For wrk: sends the lines of a file to /v1/search in turn, counts answers by status, and prints one line for each figure.
-- wrk -t1 -c8 -d10s -s serve.lua http://127.0.0.1:8080 -- bodies.jsonl [milliseconds between requests of a connection]

local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(arguments)
  requests, turn = {}, 0
  ok, busy, other = 0, 0, 0
  local headers = { ["Content-Type"] = "application/json" }
  for body in io.lines(arguments[1]) do
    table.insert(requests, wrk.format("POST", "/v1/search", headers, body))
  end
  local pause = tonumber(arguments[2])
  if pause then
    delay = function() return pause end
  end
end

function request()
  turn = turn % #requests + 1
  return requests[turn]
end

function response(status, headers)
  if status == 200 then
    ok = ok + 1
  elseif status == 503 and (headers["retry-after"] or headers["Retry-After"]) then
    busy = busy + 1
  else
    other = other + 1
  end
end

function done(summary, latency)
  local failed = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
  local figures = { failed = failed, seconds = summary.duration / 1e6 }
  for _, name in ipairs({ "ok", "busy", "other" }) do
    figures[name] = 0
    for _, thread in ipairs(threads) do
      figures[name] = figures[name] + thread:get(name)
    end
  end
  figures.p50_ms, figures.p99_ms = latency:percentile(50) / 1e3, latency:percentile(99) / 1e3
  for name, value in pairs(figures) do
    print("figure " .. name .. " " .. value)
  end
end
