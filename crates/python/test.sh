#!/usr/bin/env bash
# Builds the wheel, installs it in a virtual environment and runs the tests there. The wheel is built like the Rust tests (features,
# profile), so that what those have compiled is not compiled again.
# Needs the Rust toolchain and python3 (3.10 or later); arguments go to pytest. `--venv FOLDER`, first and alone, only sets up the environment;
# $ULTTA_VENV names one that was set up so.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

set_up() {
    python3 -m venv "$1"
    "$1/bin/pip" install --quiet --disable-pip-version-check \
        'maturin>=1.9.4,<2' numpy pytest pytest-xdist mypy scikit-learn pandas matplotlib pyarrow tqdm safetensors
}

if [ "${1:-}" = --venv ]; then
    set_up "$2"
    exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${ULTTA_VENV:-$work/venv}
[ -n "${ULTTA_VENV:-}" ] || set_up "$venv"
cd "$root"
PATH="$venv/bin:$PATH" CARGO_INCREMENTAL=0 maturin build --profile dev --features shared-with-tests --quiet --out "$work/wheels"
"$venv/bin/pip" install --quiet --disable-pip-version-check "$work"/wheels/ultta-*.whl
PATH="$venv/bin:$PATH" "$venv/bin/python" -m pytest -q -n 2 -p no:cacheprovider crates/python/tests "$@"
