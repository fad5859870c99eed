#!/usr/bin/env bash
# Looks at a built container image: the program starts, the licences and the list of crates are in it, the service refuses to start
# without tokens.
#   deploy/check-image.sh PROGRAM IMAGE      PROGRAM: podman or docker
set -euo pipefail
run() { "$1" run --rm --entrypoint "$2" "${@:3}"; }
run "$1" ultta "$2" --version
for file in LICENSE-APACHE LICENSE-MIT THIRD_PARTY.md THIRD_PARTY_LICENSES.txt sbom.cdx.json; do
    run "$1" test "$2" -s "/usr/local/share/doc/ultta/$file" || { echo "$file is missing in the image" >&2; exit 1; }
done
if told=$(timeout 60 "$1" run --rm "$2" 2>&1) || ! grep -q "tokens are required" <<< "$told"; then
    printf 'without tokens: expected a refusal, got\n%s\n' "$told" >&2
    exit 1
fi
