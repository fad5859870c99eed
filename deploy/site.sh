#!/usr/bin/env bash
# Builds the site of docs/ into target/site (mdBook with search: `cargo install mdbook --no-default-features --features search`).
# Fails on a warning of mdBook, on a page of docs/ that is not in its contents, and on a link between pages that leads nowhere.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p target
mdbook build 2>&1 | tee target/site.log
if grep -Eq '^ *(WARN|ERROR)|\[(WARN|ERROR)\]| (WARN|ERROR) ' target/site.log; then
    echo "mdBook warned" >&2
    exit 1
fi
python3 deploy/links.py
