#!/usr/bin/env bash
# Every test of the project: format, lints, Rust tests, documentation, the Python package.
# Sets up what it needs (crates and Python packages by name); needs the Rust toolchain, git and python3.
#
# The crates are compiled once, for the lints, the tests, the documentation and the wheel: clippy compiles the project's own crates, as
# a compiler that also has its opinion, and every command here asks for the same features and the same profile.
set -euo pipefail
cd "$(dirname "$0")"
export CARGO_INCREMENTAL=0
export RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings
all=(--workspace --features gradient,mqtt,nats,parquet)

# Python packages arrive while the compiler works.
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
crates/python/test.sh --venv "$venv" &
packages=$!

cargo fmt --all --check
cargo test "${all[@]}" --all-targets --no-run
if cargo nextest --version > /dev/null 2>&1; then
    # One more than there are cores: some tests wait rather than compute.
    cargo nextest run "${all[@]}" --test-threads $(($(getconf _NPROCESSORS_ONLN) + 1))
else
    cargo test "${all[@]}" --lib --bins --tests --examples
fi
# Pages and examples of the documentation are made while the wheel is built and tested.
RUSTDOC="$PWD/.ci/rustdoc" cargo test "${all[@]}" --doc > "$venv/documentation.log" 2>&1 &
documentation=$!
wait "$packages"
ULTTA_VENV="$venv" crates/python/test.sh
documented=0
wait "$documentation" || documented=$?
cat "$venv/documentation.log"
exit $documented
