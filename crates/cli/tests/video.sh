#!/usr/bin/env bash
# Video with the real ffmpeg, which is installed if it is missing: a clip with cuts, a black stretch, another resolution in
# the middle and a broken end; a camera that goes away and comes back; memory over an hour of frames; lag. About three minutes.
# Times are asserted (half a second, a second of lag), so the tests come before other work where that is allowed (root).
set -euo pipefail
cd "$(dirname "$0")/../../.."
if ! command -v ffmpeg > /dev/null; then
    apt-get update && apt-get install -y ffmpeg
fi
cargo test --workspace --features gradient,mqtt,nats,parquet --test cli --no-run
first=$(nice -n -15 true 2> /dev/null && echo nice -n -15 || true)
$first cargo test --workspace --features gradient,mqtt,nats,parquet --test cli video::ffmpeg -- --ignored --nocapture --test-threads 1
