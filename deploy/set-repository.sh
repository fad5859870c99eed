#!/usr/bin/env bash
# Writes the address of the repository into the manifests and the first pages, before anything is published: the tree itself does not
# know where it will be kept. `cargo binstall` finds the archives of a release by it.
#   deploy/set-repository.sh https://host/owner/ultta
set -euo pipefail
cd "$(dirname "$0")/.."
address=${1%/}
if grep -q '^repository = ' Cargo.toml; then
    echo "Cargo.toml already has an address: $(grep '^repository = ' Cargo.toml)" >&2
    exit 1
fi
sed -i "s|^\[workspace.package\]$|&\nrepository = \"$address\"|" Cargo.toml
for manifest in crates/*/Cargo.toml; do
    sed -i '0,/^license.workspace = true$/s//&\nrepository.workspace = true/' "$manifest"
done
sed -i "s|^\[project.scripts\]$|[project.urls]\nRepository = \"$address\"\n\n&|" pyproject.toml
# The pages on crates.io (README.md) and PyPI (docs/python.md): there the package has a name, and links between files lead nowhere.
sed -i -E "s|\]\(docs/demo.svg\)|](${address}/raw/main/docs/demo.svg)|; s|\]\(([A-Za-z_][A-Za-z0-9_/.-]*)([)#])|](${address}/blob/main/\1\2|g
    s|^.pip install \.. from a checkout \(([^;]*); ultta is not on PyPI yet\)|\`pip install ultta\` (or \`pip install .\` from a checkout: \1)|
    s|pip install '\.\[|pip install 'ultta[|g" README.md
sed -i -E "s|^pip install \. .*|pip install ultta|; s|\]\(([a-z-]+\.md)|](${address}/blob/main/docs/\1|g" docs/python.md
