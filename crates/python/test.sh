#!/usr/bin/env bash
# Builds the wheel, installs it in a fresh virtual environment and runs the tests there. The wheel is built like the
# Rust tests (features, profile), so that what those have compiled is not compiled again.
# Needs the Rust toolchain and python3 (3.10 or later); arguments go to pytest.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    'maturin>=1.9.4,<2' numpy pytest mypy scikit-learn pandas matplotlib pyarrow tqdm safetensors
cd "$root"
PATH="$work/venv/bin:$PATH" CARGO_INCREMENTAL=0 maturin build --profile dev --features shared-with-tests \
    --quiet --out "$work/wheels"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "$work"/wheels/ultta-*.whl
PATH="$work/venv/bin:$PATH" "$work/venv/bin/python" -m pytest -q -p no:cacheprovider crates/python/tests "$@"
