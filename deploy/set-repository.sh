#!/usr/bin/env bash
# Writes the address of the repository into the manifests, before anything is published: the tree itself does not know where
# it will be kept. `cargo binstall` finds the archives of a release by it.
#   deploy/set-repository.sh https://host/owner/ultta
set -euo pipefail
cd "$(dirname "$0")/.."
address=$1
sed -i "s|^\[workspace.package\]$|&\nrepository = \"$address\"|" Cargo.toml
for manifest in crates/*/Cargo.toml; do
    sed -i '0,/^license.workspace = true$/s//&\nrepository.workspace = true/' "$manifest"
done
# The page on PyPI: there the package has a name, and links between the pages of docs/ lead nowhere.
sed -i -E "s|^pip install \. .*|pip install ultta|; s|\]\(([a-z-]+\.md)|](${address}/blob/main/docs/\1|g" docs/python.md
sed -i "s|^\[project.scripts\]$|[project.urls]\nRepository = \"$address\"\n\n&|" pyproject.toml
