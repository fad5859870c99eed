"""Writes the seeds of the fuzzers' corpus: python3 fuzz/seeds.py PATH-OF-ULTTA.

Everything is made here with the standard library, but states, which the program itself saves.
"""

import io
import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"
ROWS = [1.0, 0.0, 0.6, 0.8, 0.0, 1.0]
LABELS = [0, 1, 1]


def save(target, name, data):
    path = CORPUS / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def safetensors(tensors, strings=None):
    header, data = {}, b""
    if strings:
        header["__metadata__"] = strings
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def npy(descr, shape, values, version=1):
    header = str({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + values


def pack(letter, values):
    return struct.pack(f"<{len(values)}{letter}", *values)


def npz(arrays, method):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", method) as file:
        for name, values in arrays.items():
            # A fixed date keeps the bytes the same.
            entry = zipfile.ZipInfo(name + ".npy", (1980, 1, 1, 0, 0, 0))
            entry.compress_type = method
            file.writestr(entry, values)
    return archive.getvalue()


# features
labels = {"labels": ("I64", [3], pack("q", LABELS))}
for dtype, letter in [("F16", "e"), ("F32", "f"), ("F64", "d")]:
    tensor = {"features": (dtype, [3, 2], pack(letter, ROWS))}
    save("features", dtype.lower(), safetensors(tensor | labels, {"encoder": "seed"}))
bf16 = b"".join(struct.pack("<f", value)[2:] for value in ROWS)
save("features", "bf16-u8-labels", safetensors({"features": ("BF16", [3, 2], bf16), "labels": ("U8", [3], bytes(LABELS))}))
save("features", "no-rows", safetensors({"features": ("F32", [0, 2], b"")}))

# head
strings = {"classes": '["a", "b"]', "logit_scale": "10"}
head = safetensors({"prototypes": ("F32", [2, 2], pack("f", [1, 0, 0, 1]))}, strings)
head_path = save("head", "two-classes", head)
save("head", "names", safetensors({"prototypes": ("F16", [2, 2], pack("e", [1, 0, 0, 1]))}, {**strings, "classes": '["\\u00e9", "b"]'}))

# numpy
features = npy("<f4", (3, 2), pack("f", ROWS))
save("numpy", "f4.npy", features)
save("numpy", "f2-version-2.npy", npy("<f2", (3, 2), pack("e", ROWS), 2))
save("numpy", "f8.npy", npy("<f8", (3, 2), pack("d", ROWS)))
arrays = {"features": features, "labels": npy("<i8", (3,), pack("q", LABELS))}
save("numpy", "stored.npz", npz(arrays, zipfile.ZIP_STORED))
save("numpy", "deflated.npz", npz(arrays, zipfile.ZIP_DEFLATED))

# body: rows as they are posted
for dtype, letter in [("F16", "e"), ("F32", "f"), ("F64", "d")]:
    save("body", dtype.lower(), safetensors({"features": (dtype, [3, 2], pack(letter, ROWS))}))
marks = {"learn": ("BOOL", [3], bytes([1, 0, 1])), "times": ("F64", [3], pack("d", [1, 2, 3]))}
whole = {"features": ("F32", [3, 2], pack("f", ROWS))}
save("body", "marks", safetensors(whole | marks))
save("body", "f4.npy", features)
save("body", "short-marks", safetensors(whole | {"learn": ("U8", [2], bytes(2))}))
save("body", "float-marks", safetensors(whole | {"learn": ("F32", [3], pack("f", [1, 1, 1]))}))
save("body", "no-features", safetensors(marks))
save("body", "flat", safetensors({"features": ("F32", [6], pack("f", ROWS))}))
save("body", "cut.npy", features[:-5])
save("body", "nan.npy", npy("<f4", (1, 2), pack("f", [float("nan"), 0])))
save("body", "empty", b"")

# config
save("config", "empty", b"")
save("config", "paper", b'[method.ul_tta]\npreset = "paper"\n')
save("config", "some", b"[method.ul_tta.gate]\nkeep = 0.5\n[unknown]\nscore = \"energy\"\nquantile = 0.1\n[guard]\nwindow = 64\n")
save("config", "zero-shot", b"[method.zero_shot]\n")

# lines
save("lines", "array", b"[0.6, 0.8]")
save("lines", "object", b'{"id": "a", "features": [0.6, 0.8], "learn": false, "time": 1.5, "views": [[1, 0]]}')
save("lines", "number-id", b'{"id": 7, "features": [3, 4]}')

# state
stream = save("features", "stream", safetensors({"features": ("F32", [300, 2], pack("f", ROWS * 100))}))
for name, flags in [("default", []), ("paper", ["--preset", "paper"]), ("zero-shot", ["--method", "zero-shot"]), ("start", ["--rows", "..1"])]:
    path = CORPUS / "state" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.argv[1], "run", "--features", stream, "--head", head_path, "--save-state", path, "--quiet"]
    subprocess.run(command + flags, check=True)
