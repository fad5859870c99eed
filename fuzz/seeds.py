"""Writes the seeds of the fuzzers' corpus: python3 fuzz/seeds.py PATH-OF-ULTTA.

Everything is made here with the standard library, but states and a run, which the program itself saves.
"""

import base64
import io
import json
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"
ROWS = [1.0, 0.0, 0.6, 0.8, 0.0, 1.0]
LABELS = [0, 1, 1]
# What a segment of the write-ahead log begins with (crates/server/src/log.rs).
MAGIC = b"ULTTAW\x00\x03" + b"a stream"

PICTURES = {
    "jpeg": "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/2wBDARweHigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKT/wAARCAACAAMDASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAAAAX/xAAbEAACAQUAAAAAAAAAAAAAAAAAAQIDBDJBYv/EABUBAQEAAAAAAAAAAAAAAAAAAAIE/8QAGhEAAgIDAAAAAAAAAAAAAAAAAAECAzEycf/aAAwDAQACEQMRAD8Ag3EpOom28I75QALqtI8QXk//2Q==",
    "webp-lossless": "UklGRkgAAABXRUJQVlA4TDwAAAAvAkAAAC+goG0U6F4QiX8d2CCTtim96t/QpE1B2zZMP5fxB7j5D/Af4kHaNrcDhWwjwKndQ3BqF9H/GC8=",
    "webp": "UklGRjgAAABXRUJQVlA4ICwAAADQAQCdASoDAAIAB0CWJagC7AEfhtsHAAD+zyZZqEdVQU6YnQzZfDyeaMAgAA==",
    "tiff": "SUkqABoAAACAP8AQOBQQAgIBsgyDIEw2AgAKAAABAwABAAAAAwAAAAEBAwABAAAAAgAAAAIBAwADAAAAmAAAAAMBAwABAAAABQAAAAYBAwABAAAAAgAAABEBBAABAAAACAAAABUBAwABAAAAAwAAABYBAwABAAAAAgAAABcBBAABAAAAEQAAABwBAwABAAAAAQAAAAAAAAAIAAgACAA=",
    "gif": "R0lGODdhAwACAIIAAAD/AMhkMgkJCQECA/8AAAAA/wAAAAAAACwAAAAAAwACAAAICQAJACgwIICAgAA7",
    "png": "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAIAAAASFvFNAAAAF0lEQVR4nGP4z8DAAMGMTMwnUow4OTkBNLcEfWMeMvsAAAAASUVORK5CYII=",
    "bmp": "Qk1OAAAAAAAAADYAAAAoAAAAAwAAAAIAAAABABgAAAAAABgAAADEDgAAxA4AAAAAAAAAAAAAAwIBMmTICQkJAAAAAAD/AP8A/wAAAAAA",
}

# Three rows of two numbers with labels and marks, written by PyArrow.
PARQUET = {
    "plain": "UEFSMRUEFSAVIEwVCBUAEgAAAACAPwAAAACamRk/zcxMPxUAFSAVICwVDBUQFQYVBhwAAAACAAAAAyoCAAAADAMCA+QBFQQVIBUgTBUEFQASAAAAAAAAAAAAAAEAAAAAAAAAFQAVEhUSLBUGFRAVBhUGHAAAAAIAAAAGAQEDBhUAFQ4VDiwVBhUAFQYVBhwAAAACAAAABgEFFQQZbDUAGAZzY2hlbWEVBgA1AhgIZmVhdHVyZXMVAhUGTDwAAAA1BBgEbGlzdBUCABUIJQIYB2VsZW1lbnQAFQQlAhgGbGFiZWxzABUAJQIYBWxlYXJuABYGGRwZPCYAHBUIGTUABhAZOAhmZWF0dXJlcwRsaXN0B2VsZW1lbnQVABYMFoIBFoIBJkQmCCksFQQVABUCABUAFRAVAgA8KSYGBhlGAAAADAAAACYAHBUEGTUABhAZGAZsYWJlbHMVABYGFnQWdCbGASaKASksFQQVABUCABUAFRAVAgA8KQYZJgAGAAAAJgAcFQAZJQYAGRgFbGVhcm4VABYGFjQWNCb+AUkcFQAVABUCADwpBhkmAAYAAAAWqgIWBiYIFqoCACggcGFycXVldC1jcHAtYXJyb3cgdmVyc2lvbiAyNi4wLjEZPBwAABwAABwAAABPAQAAUEFSMQ==",
    "snappy": "UEFSMRUEFUAVPEwVCBUAEgAAIAAABQEE8D8FB0gAAAAzMzMzMzPjP5qZmZmZmek/FQAVIBUkLBUMFRAVBhUGHAAAABA8AgAAAAMqAgAAAAwDAgPkARUEFSAVJEwVBBUAEgAAEDwAAAAAAAAAAAEAAAAAAAAAFQAVEhUWLBUGFRAVBhUGHAAAAAkgAgAAAAYBAQMGFQAVDhUSLBUGFQAVBhUGHAAAAAcYAgAAAAYBBRUEGWw1ABgGc2NoZW1hFQYANQIYCGZlYXR1cmVzFQIVBkw8AAAANQQYBGxpc3QVAgAVCiUCGAdlbGVtZW50ABUEJQIYBmxhYmVscwAVACUCGAVsZWFybgAWBhkcGTwmABwVChk1AAYQGTgIZmVhdHVyZXMEbGlzdAdlbGVtZW50FQIWDBaiARaiASZgJggpLBUEFQAVAgAVABUQFQIAPCkmBgYZRgAAAAwAAAAmABwVBBk1AAYQGRgGbGFiZWxzFQIWBhZ0Fnwm6gEmqgEpLBUEFQAVAgAVABUQFQIAPCkGGSYABgAAACYAHBUAGSUGABkYBWxlYXJuFQIWBhY0FjgmpgJJHBUAFQAVAgA8KQYZJgAGAAAAFsoCFgYmCBbWAgAoIHBhcnF1ZXQtY3BwLWFycm93IHZlcnNpb24gMjYuMC4xGTwcAAAcAAAcAAAATwEAAFBBUjE=",
}


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


def archive(files, method):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as file:
        for name, values in files.items():
            # A fixed date keeps the bytes the same.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = method
            file.writestr(entry, values)
    return data.getvalue()


def npz(arrays, method):
    return archive({name + ".npy": values for name, values in arrays.items()}, method)


def tar(files):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as file:
        for name, values in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(values)
            file.addfile(entry, io.BytesIO(values))
    return data.getvalue()


def text_value(text):
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def record(number, kind, body):
    """A record of the write-ahead log: size, checksum, the checksum of both, then number, kind and body."""
    payload = struct.pack("<QB", number, kind) + body
    frame = struct.pack("<II", len(payload), zlib.crc32(payload))
    return frame + struct.pack("<I", zlib.crc32(frame)) + payload


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

# weights: safetensors, and an archive as torch.save writes it
save("weights", "safetensors", safetensors({"logit_scale": ("F32", [], pack("f", [2.5])), "visual.proj": ("F32", [3, 2], pack("f", ROWS))}))
storage = b"((" + text_value("storage") + b"ctorch\nFloatStorage\n" + text_value("0") + text_value("cpu") + b"K\x06tQ"
shape = b"K\x00K\x03K\x02\x86K\x02K\x01\x86\x89ccollections\nOrderedDict\n)Rt"
tensor = b"ctorch._utils\n_rebuild_tensor_v2\n" + storage + shape + b"R"
pickle = b"\x80\x02}q\x00(" + text_value("visual.proj") + tensor + b"u."
files = {"m/data.pkl": pickle, "m/data/0": pack("f", ROWS)}
save("weights", "torch", archive(files, zipfile.ZIP_STORED))
save("weights", "torch-compressed", archive(files, zipfile.ZIP_DEFLATED))
save("weights", "torch-short", archive(files | {"m/data/0": pack("f", ROWS[:2])}, zipfile.ZIP_STORED))
nested = b"\x80\x02)" + b"\x85" * 40 + b"."
save("weights", "torch-nested", archive({"m/data.pkl": nested}, zipfile.ZIP_STORED))

# archive: pictures and classes
save("archive", "two", tar({"a/1.jpg": b"no picture", "a/1.cls": b"cat", "a/2.png": b"nor this", "a/2.json": b"{}"}))
save("archive", "empty", tar({}))
save("archive", "cut", tar({"1.jpg": bytes(2000)})[:1400])

# text and vocabulary
save("text", "plain", b"a photo of a cat.")
save("text", "entities", "Zo\u00eb &amp; caf\u00c3\u00a9 \u2014 \u201cquoted\u201d &#x1F600; \u65e5\u672c".encode())
save("text", "spaces", b" \t\r\n  \x00 ")
pieces = [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["\u2581", -2.0], ["\u2581a", -3.0], ["\u2581photo", -4.0], ["cat", -3.5]]
save("vocabulary", "some", json.dumps({"model": {"type": "Unigram", "unk_id": 2, "vocab": pieces}}).encode())
save("vocabulary", "no-end", json.dumps({"model": {"vocab": pieces[:1]}}).encode())
save("vocabulary", "other", json.dumps({"model": {"type": "BPE", "vocab": []}}).encode())

# delta: what a member of a group sends; its head and settings are put in by the reader
at = ("U64", [5], struct.pack("<5Q", 0, 0, 1, 0, 200))
n = ("F64", [5], pack("d", [200, 0, 0, 200, 0]))
sums = {"at": at, "n": n, "sum": ("F32", [2], pack("f", [120, 80])), "second_sum": ("F32", [0], b""), "second": ("F32", [0], b"")}
classes = {"classes": ("U32", [1], pack("I", [0])), "class_n": ("F32", [1], pack("f", [90])), "class_sum": ("F32", [2], pack("f", [70, 40]))}
none = {"classes": ("U32", [0], b""), "class_n": ("F32", [0], b""), "class_sum": ("F32", [0], b"")}
save("delta", "classes", safetensors(sums | classes, {"format": "ultta-delta-1", "member": "a"}))
save("delta", "none", safetensors(sums | none, {"format": "ultta-delta-1", "member": "a"}))
moments = {"n": ("F64", [5], pack("d", [200, 128, 0, 200, 0])), "second_sum": ("F32", [2], pack("f", [70, 50])), "second": ("F32", [3], pack("f", [70, 20, 58]))}
save("delta", "moments", safetensors(sums | classes | moments, {"format": "ultta-delta-1", "member": "a"}))
save("delta", "short", safetensors(sums | classes | {"class_sum": ("F32", [1], pack("f", [70]))}, {"format": "ultta-delta-1", "member": "a"}))

# Found by the fuzzer: with so many samples the group's clock could not be loaded again.
many = {"at": ("U64", [5], struct.pack("<5Q", 0, 0, 1, 1 << 49, 1 << 54))}
save("delta", "clock", safetensors(sums | classes | many, {"format": "ultta-delta-1", "member": "a"}))

# log: rows (learn and times given), a label, learning switched off
rows = struct.pack("<IIB", 3, 2, 3) + bytes([1, 0, 1]) + pack("d", [1, 2, 3]) + pack("f", ROWS)
label = struct.pack("<QQ", 1, 0)
whole = MAGIC + record(0, 1, rows) + record(1, 2, label) + record(2, 3, b"\x00")
save("log", "records", whole)
save("log", "torn", whole[:-3])
save("log", "other", b"no log")

# request: JSON bodies of the service
two = [[1, 0], [0.6, 0.8]]
full = {"features": two, "learn": [True, False], "times": [1, 2.5], "views": [two, []], "refs": ["a", 2], "top": 1, "probs": True, "normalize": True}
created = {"name": "s", "head": {"prototypes": two, "classes": ["a", "b"], "logit_scale": 10}, "settings": {"guard.advanced.window": 64}, "durability": "sync"}
for name, body in {
    "classify": full,
    "create": created,
    "create-bytes": {"name": "s", "head_base64": base64.b64encode(head).decode(), "config": "[guard.advanced]\nwindow = 64\n"},
    "clone": {"name": "t", "shadow": True, "method": "ul-tta", "preset": "paper"},
    "feedback": {"labels": [{"id": 1, "label": 0}, {"id": 2, "class": "b"}], "generation": 1},
    "pictures": {"pictures": ["AAAA"], "refs": [1], "top": 2},
}.items():
    save("request", name, json.dumps(body).encode())

# infer: the length of the JSON (zero: all of it), the JSON, binary tensors
tensor = {"name": "features", "shape": [3, 2], "datatype": "FP32"}
text = json.dumps({"id": "i", "inputs": [tensor | {"data": ROWS}], "outputs": [{"name": "label"}]}).encode()
save("infer", "numbers", b"\0\0" + text)
text = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [tensor | {"parameters": {"binary_data_size": 24}}]}).encode()
save("infer", "binary", struct.pack("<H", len(text)) + text + pack("f", ROWS))

# folder: the list of a stream's files, a zero, the stream's settings
manifest = {"format": "ultta-manifest-1", "head": "00", "settings": "00", "base": {"number": 3, "sha256": "ab" * 32}, "logs": [3, 9]}
settings = {"format": "ultta-stream-2", "config": "", "durability": None, "shadow_of": None, "created": 1.5}
save("folder", "whole", json.dumps(manifest).encode() + b"\0" + json.dumps(settings).encode())
save("folder", "start", json.dumps(manifest | {"base": None, "logs": [0]}).encode() + b"\0{}")

# picture: three by two pixels each, written by Pillow
for name, data in PICTURES.items():
    save("picture", name, base64.b64decode(data))

# parquet
for name, data in PARQUET.items():
    save("parquet", name, base64.b64decode(data))

# labels and model
save("labels", "lines", "\ufeffcat\ndog\n\n  red fox \n".encode())
save("labels", "list", b'["cat", "dog"]')
save("labels", "descriptions", b'{"cat": ["a small cat", "a {} on a mat"], "dog": []}')
tower = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 4, "patch_size": 2, "hidden_act": "gelu"}
model = {"model_type": "clip", "projection_dim": 4, "vision_config": tower, "text_config": tower | {"vocab_size": 50, "max_position_embeddings": 8}}
cut = {"crop_size": {"height": 4, "width": 4}, "size": {"shortest_edge": 4}, "image_mean": [0, 0, 0], "image_std": [1, 1, 1], "resample": 3}
save("model", "transformers", json.dumps(model | cut).encode())
clip = {"embed_dim": 4, "vision_cfg": {"image_size": 4, "layers": 1, "width": 64, "patch_size": 2}, "text_cfg": {"context_length": 8, "vocab_size": 50, "width": 4, "heads": 2, "layers": 1}}
save("model", "open-clip", json.dumps({"model_cfg": clip, "preprocess_cfg": {"mean": [0, 0, 0], "std": [1, 1, 1]}}).encode())

# split: CoOp's list of pictures, with and without them
pictures = [["a.jpg", 0, "Abyssinian"], ["b.jpg", 1, "Beagle"]]
save("split", "two", json.dumps({"train": pictures[:1], "val": [], "test": pictures}).encode())

# journal: a line, and one that was torn
save("journal", "torn", b'{"key":"ul-tta|a|0","top1":1.5,"nll":0.1,"ece":-0.2}\n{"key":"to')

# config
save("config", "empty", b"")
save("config", "paper", b'[method.ul_tta]\npreset = "paper"\n')
save("config", "some", b"[method.ul_tta.gate]\nkeep = 0.5\n[unknown]\nscore = \"energy\"\nquantile = 0.1\n[guard.advanced]\nwindow = 64\n")
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

# run: the files of a run folder, parted by zeros; how it came about is left out
with tempfile.TemporaryDirectory() as out:
    command = [sys.argv[1], "eval", "--features", CORPUS / "features" / "f32", "--head", head_path, "--out", out, "--json"]
    subprocess.run(command + ["--methods", "zero-shot"], check=True, stdout=subprocess.DEVNULL)
    folder = next(Path(out).glob("**/done")).parent
    parts = [(folder / name).read_bytes() for name in ["summary.json", "timing.json", "windows.jsonl"]]
    save("run", "whole", b"\0".join(parts + [b"", b"\1", b""]))
