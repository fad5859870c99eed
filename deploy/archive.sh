#!/usr/bin/env bash
# Packs what a release offers for download: the program, completions, man pages, licences (those of dependencies, too), the list of the crates it is built from.
#   deploy/archive.sh PROGRAM TARGET FEATURES OUT    →  OUT/ultta-TARGET.tar.gz and its .sha256
# PROGRAM is a built `ultta` that runs on this machine, TARGET its Rust target (`x86_64-unknown-linux-gnu`), FEATURES what it was built with.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
program=$(realpath "$1") target=$2 features=$3
mkdir -p "$4"
out=$(realpath "$4")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$work/ultta-$target
mkdir -p "$folder/completions" "$folder/man"
install -m 755 "$program" "$folder/ultta"
for shell in bash zsh fish elvish powershell; do
    "$program" completions "$shell" > "$folder/completions/ultta.$shell"
done
"$program" man "$folder/man"
cp "$root"/{README.md,CHANGELOG.md,LICENSE-APACHE,LICENSE-MIT,THIRD_PARTY.md} "$folder/"
python3 "$root/deploy/licences.py" ultta-cli "$folder/THIRD_PARTY_LICENSES.txt" --target "$target"
python3 "$root/deploy/dependencies.py" --sbom "$folder/sbom.cdx.json" --target "$target" --features "$features"
tar -C "$work" --sort=name --owner=0 --group=0 -czf "$out/ultta-$target.tar.gz" "ultta-$target"
(cd "$out" && sha256sum "ultta-$target.tar.gz" > "ultta-$target.tar.gz.sha256")
