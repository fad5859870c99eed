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
sed -i "s|^\[project.scripts\]$|[project.urls]\nRepository = \"$address\"\n\n&|" pyproject.toml
