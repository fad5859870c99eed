#!/usr/bin/env bash
# Every test of the project: format, lints, Rust tests, documentation, the Python package.
# Sets up what it needs (crates and Python packages by name); needs the Rust toolchain, git and python3.
set -euo pipefail
cd "$(dirname "$0")"
cargo fmt --all --check
cargo clippy --workspace --all-targets -- -D warnings
cargo test --workspace
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
crates/python/test.sh
