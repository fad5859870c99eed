#!/usr/bin/env bash
# The tests that need PyTorch, open_clip and transformers (some gigabytes to download), in a fresh virtual
# environment. Arguments go to pytest. The wheel is built like the Rust tests, as in test.sh.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    'maturin>=1.9.4,<2' numpy pytest matplotlib torch open_clip_torch transformers pillow
cd "$root"
PATH="$work/venv/bin:$PATH" CARGO_INCREMENTAL=0 maturin build --profile dev --features shared-with-tests \
    --quiet --out "$work/wheels"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "$work"/wheels/ultta-*.whl
PATH="$work/venv/bin:$PATH" "$work/venv/bin/python" -m pytest -q -p no:cacheprovider crates/python/tests_torch "$@"
