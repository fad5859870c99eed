#!/usr/bin/env bash
# Further tests of the service, each with what it needs set up by name. From the root of the project:
#   bash crates/server/tests/further.sh [kills|hostile|memory|schema|triton|page|fuzz …]      all of them if none is named
# Needs the Rust toolchain, python3 and node; `page` needs Debian's chromium (installed if there is apt).
# KILLS (200), EXAMPLES (200 that reach each call), SOAK (1200 seconds) and SECONDS_ (60 of a processor for each fuzz target) make it longer or shorter; SCHEMA_PATHS is a regular expression of the paths that schema looks at; ULTTA is a program to test instead
# of the one that is built.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=crates/server/tests
scratch="${ULTTA_FURTHER:-$(mktemp -d)}"
mkdir -p "$scratch"
if [ -z "${ULTTA:-}" ]; then cargo build --quiet --release --bin ultta; fi
ultta="${ULTTA:-target/release/ultta}"
server=""
cleanup() { if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi; }
trap cleanup EXIT

serve() { # name, further flags: starts a server with a small simulated stream; sets $url
  rm -rf "$scratch/data-$1" "$scratch/address"
  touch "$scratch/address"
  python3 "$here/further/small_head.py" "$scratch/head.safetensors" "$scratch/features.npy" "$scratch/labels.json" ${stream:-}
  if [ "${head:-}" = tiny ]; then cp "$scratch/tiny.safetensors" "$scratch/head.safetensors"; fi
  # The signal that comes with files beyond a limit is ignored, as if the disk were full.
  ULTTA_LOG=warn bash -c "trap '' XFSZ; ${limit:-:}; exec \"\$0\" \"\$@\"" "$ultta" serve --head "$scratch/head.safetensors" --data-dir "$scratch/data-$1" --port 0 "${@:2}" > "$scratch/address" 2>> "$scratch/server.log" &
  server=$!
  for _ in $(seq 100); do grep -q listening "$scratch/address" && break; sleep 0.1; done
  url="http://$(sed -n 's/listening on //p' "$scratch/address")"
}
venv() { # packages
  [ -x "$scratch/venv/bin/python" ] || python3 -m venv "$scratch/venv"
  "$scratch/venv/bin/pip" install -q "$@"
}

kills() { # kill -9 under load, half of them amid labels, snapshots, returns, freezing, compaction and a shadow
  ULTTA_KILLS="${KILLS:-200}" cargo test --quiet --workspace --features gradient,mqtt,nats,parquet --test cli killed_at_random -- --nocapture
}

hostile() { # normal clients alone and beside hostile ones: their p99, every status, memory
  tiny
  serve hostile --model tiny
  "$ultta" client --url "$url" create --head "$scratch/tiny.safetensors" --stream shapes > /dev/null
  python3 "$here/further/hostile.py" "$url" "$server" "$scratch/features.npy" "${SOAK:-1200}" "$scratch/memory.csv"
  cleanup; server=""
}

memory() { # what a token could fill it with: at most three times `waiting_bytes` more
  python3 "$here/further/memory.py" "$ultta"
}

tiny() { # a head of the tiny model, and pictures for it
  [ -d "$scratch/shapes" ] || "$ultta" demo --pictures "$scratch/shapes" > /dev/null
  "$ultta" head --model tiny --labels circle,star,ring,hexagon --out "$scratch/tiny.safetensors" > /dev/null
}

schema() { # every documented call with bodies made from the document, and made to reach the call: no undocumented status (no 500), no broken answer
  venv schemathesis
  tiny
  export ULTTA_TOKEN_ADMIN=an-admin-token-for-the-schema ULTTA_TOKEN_READ=a-read-token-for-the-schema
  head=tiny serve schema --model tiny --group cameras
  post() { curl -sf -H "authorization: Bearer $ULTTA_TOKEN_ADMIN" -H 'content-type: application/json' "$url/v1/streams$1" -d "$2" > /dev/null; }
  post "" '{"name": "second", "head_of": "default", "group": "cameras"}'
  post /default/snapshots '{"label": "kept"}'
  curl -sf "$url/openapi.json" > "$scratch/openapi.json"
  SCHEMA_URL="$url" SCHEMA_PICTURE="$scratch/shapes/star/0000.png" SCHEMA_COUNTS="$scratch/counts.json" PYTHONPATH="$here/further" SCHEMATHESIS_HOOKS=schema_cases \
    timeout "${SCHEMA_SECONDS:-3600}" "$scratch/venv/bin/schemathesis" --config-file "$here/further/schemathesis.toml" run "$url/openapi.json" --checks status_code_conformance,content_type_conformance,response_schema_conformance \
    --max-examples "$((${EXAMPLES:-200} * 3 / 2))" --seed 1 --request-timeout 30 --workers 1 --phases examples,coverage,fuzzing --include-path-regex "${SCHEMA_PATHS:-.}"
  "$scratch/venv/bin/python" "$here/further/schema_cases.py" "$scratch/counts.json" "$scratch/openapi.json" "${EXAMPLES:-200}" "${SCHEMA_PATHS:-.}"
  curl -sf "$url/healthz"; echo
  cleanup; server=""
  unset ULTTA_TOKEN_ADMIN ULTTA_TOKEN_READ
}

triton() { # the Open Inference Protocol, with a client library of its own
  venv 'tritonclient[http]' numpy
  serve triton
  "$scratch/venv/bin/python" "$here/further/triton_client.py" "$url" "$scratch/features.npy"
  cleanup; server=""
}

look() { # script, what: the page of the server at hand in a browser
  NODE_PATH="$scratch/node_modules" SHOTS="$scratch/screenshots" FEATURES="$scratch/features.npy" LABELS="$scratch/labels.json" TOKEN="$ULTTA_TOKEN_ADMIN" \
    SERVER="$server" node "$here/further/$1.js" "$url" "${@:2}"
}
again() { # name, further flags: the server of before on the same data
  : > "$scratch/address"
  ULTTA_LOG=off "$ultta" serve --head "$scratch/head.safetensors" --data-dir "$scratch/data-$1" --port 0 "${@:2}" > "$scratch/address" 2>> "$scratch/server.log" &
  server=$!
  for _ in $(seq 100); do grep -q listening "$scratch/address" && break; sleep 0.1; done
  url="http://$(sed -n 's/listening on //p' "$scratch/address")"
}
page() { # the dashboard in a browser: every verdict by real traffic, real clicks, no console errors, screenshots to look at
  [ -x "${CHROMIUM:-/usr/bin/chromium}" ] || apt-get install -y -q chromium
  [ -d "$scratch/node_modules/playwright-core" ] || npm install --silent --prefix "$scratch" playwright-core
  export ULTTA_TOKEN_ADMIN=an-admin-token-for-the-page
  # sets, and a promise of its own
  printf 'coverage = 0.9\n[alarms]\nscenes = 50000.0\n' > "$scratch/page.toml"
  serve page --config "$scratch/page.toml"
  look page
  cleanup; server=""
  # one of the two streams is broken on the disk: the page shows it beside the other
  echo broken > "$(ls -d "$scratch"/data-page/streams/yard*)/head.safetensors"
  again page --config "$scratch/page.toml"
  look verdicts damaged
  cleanup; server=""
  # a byte of a record that was on the disk is another one now
  serve lost --durability sync
  for _ in 1 2 3; do ULTTA_TOKEN="$ULTTA_TOKEN_ADMIN" "$ultta" client --url "$url" classify "$scratch/features.npy" > /dev/null; done
  kill -9 "$server"; wait "$server" 2>/dev/null || true; server=""
  python3 - "$scratch"/data-lost/streams/default/*.wal <<'PYTHON'
import sys
with open(sys.argv[1], "r+b") as log:
    log.seek(0, 2)
    middle = log.tell() // 2
    log.seek(middle)
    byte = log.read(1)[0]
    log.seek(middle)
    log.write(bytes([byte ^ 1]))
PYTHON
  again lost
  look verdicts lost
  cleanup; server=""
  printf '[server.alarms]\nsilent_seconds = 3.0\n' > "$scratch/silent.toml"
  serve silent --config "$scratch/silent.toml"
  look verdicts silent
  cleanup; server=""
  limit="ulimit -S -f 60" serve full
  look verdicts full
  cleanup; server=""
  stream=treacherous serve collapse --config "$here/further/reckless.toml"
  look verdicts collapse
  cleanup; server=""
  unset ULTTA_TOKEN_ADMIN
}

fuzz() { cargo fuzz --version > /dev/null 2>&1 || cargo install --quiet cargo-fuzz; python3 fuzz/fuzz.py "${SECONDS_:-60}"; }

for what in "${@:-kills hostile memory schema triton page fuzz}"; do for each in $what; do echo "== $each"; "$each"; done; done
echo "all passed; left in $scratch"
