-- wrk: posts bodies from a file, one after another. BODIES, KIND and PATH_ come from the environment.
-- The file is a list of length-prefixed bodies (decimal length, newline, bytes).
local bodies = {}
local file = assert(io.open(os.getenv("BODIES"), "rb"))
while true do
  local length = file:read("*l")
  if not length then break end
  bodies[#bodies + 1] = file:read(tonumber(length))
end
file:close()
local at = 0
wrk.method = "POST"
wrk.headers["content-type"] = os.getenv("KIND")
function request()
  at = at % #bodies + 1
  return wrk.format(nil, os.getenv("PATH_"), nil, bodies[at])
end
function done(summary, latency, requests)
  local errors = summary.errors
  print(string.format("RESULT %.1f %.3f %.3f %d", summary.requests / (summary.duration / 1e6),
    latency:percentile(50) / 1000, latency:percentile(99) / 1000,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
