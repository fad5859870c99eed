#!/usr/bin/env bash
# The ONNX feature, with the library inside PyPI's onnxruntime wheel.
set -euo pipefail
cd "$(dirname "$0")/../../.."
venv=target/onnx-venv
[ -x "$venv/bin/python" ] || { python3 -m venv "$venv"; "$venv/bin/pip" install -q onnxruntime; }
ORT_DYLIB_PATH=$(ls "$PWD/$venv"/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.* | head -1)
export ORT_DYLIB_PATH
cargo test -p ultta-encode --features onnx --test all onnx::
