#!/usr/bin/env bash
# Installs a wheel or a source package in a fresh environment, away from the repository, and uses it: as a module, as a command.
#   deploy/clean-install.sh PACKAGE [pip options]
# A wheel must do without Rust: no cargo is on the path then. A source package needs it.
set -euo pipefail
package=$(realpath "$1")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
path=$work/venv/bin:/usr/bin:/bin
case $package in
    *.whl) if PATH=$path command -v cargo > /dev/null; then echo "cargo is in /usr/bin: not a clean environment" >&2; exit 1; fi ;;
    *) path=$path:$(dirname "$(command -v cargo)") ;;
esac
cd "$work"
clean() { env -i HOME="${HOME_FOR_CARGO:-$HOME}" PATH="$path" ${CARGO_TARGET_DIR:+CARGO_TARGET_DIR="$CARGO_TARGET_DIR"} "$@"; }
clean pip install --quiet --disable-pip-version-check "$@" "$package"
clean python - <<'END'
import pickle
import numpy as np
import ultta

head = ultta.Head.from_text_features(np.eye(3), ["cat", "dog", "owl"], logit_scale=20.0)
session = ultta.Session(head)
step = session.step(np.array([[0.8, 0.6, 0.0], [0.0, 0.6, 0.8]]))
assert step.names == ["cat", "owl"], step.names
assert pickle.loads(pickle.dumps(step)).names == step.names
encoder = ultta.Encoder("tiny")
pictures = [np.zeros((40, 30, 3), np.uint8)]
assert ultta.Session(encoder.head(["circle", "star"])).step(encoder.encode(pictures)).probs.shape == (1, 2)
print("module:", ultta.__version__, ultta.__file__)
END
case $package in *.whl) test -s "$(echo "$work"/venv/lib/python3*/site-packages/ultta-*.dist-info/licenses/THIRD_PARTY_LICENSES.txt)" ;; esac
clean ultta --version
clean python -m ultta methods > methods.txt
grep -q ul-tta methods.txt
clean ultta man man && test -s man/ultta-run.1
du -sh --apparent-size "$work"/venv/lib/python3*/site-packages/ultta | sed "s|\t.*|  installed (ultta alone)|"
ls -l "$package" | awk '{printf "%.1f MB  %s\n", $5 / 1e6, $9}' | sed "s|/.*/||"
