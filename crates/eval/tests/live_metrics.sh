#!/usr/bin/env bash
# Compares the metrics with torchmetrics, netcal and scikit-learn on fresh random cases.
# Sets up its own Python environment once (torch is large); PYTHON names another one that has the libraries.
#   bash crates/eval/tests/live_metrics.sh [CASES]
set -euo pipefail
cd "$(dirname "$0")/../../.."
venv=target/metrics-venv
python="${PYTHON:-$venv/bin/python}"
if [ ! -x "$(command -v "$python" || true)" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet numpy scikit-learn torch torchmetrics netcal
fi
cases="$(mktemp)"
trap 'rm -f "$cases"' EXIT
PYTHONDONTWRITEBYTECODE=1 "$python" crates/eval/tests/fixtures/metrics.py --random "${1:-40}" > "$cases"
ULTTA_METRIC_CASES="$cases" cargo test -p ultta-eval --test metrics
