#!/usr/bin/env bash
# The tests that need Ray and Spark (half a gigabyte to download, and Java 17 or later: Debian's default-jre-headless), in a
# fresh virtual environment. Arguments go to pytest. The wheel is built like the Rust tests, as in test.sh.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9.4,<2' pytest psutil
cd "$root"
PATH="$work/venv/bin:$PATH" CARGO_INCREMENTAL=0 maturin build --profile dev --features shared-with-tests \
    --quiet --out "$work/wheels"
wheel=$(echo "$work"/wheels/ultta-*.whl)
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel[ray,spark]"
PATH="$work/venv/bin:$PATH" "$work/venv/bin/python" -m pytest -q -p no:cacheprovider crates/python/tests_archive "$@"
