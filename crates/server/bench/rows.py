"""Rows of unit length, and files to hold them, for the benchmarks."""

import json
import struct

import numpy as np


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def safetensors(name, array, strings):
    data = np.ascontiguousarray(array, dtype="<f4").tobytes()
    header = {"__metadata__": strings, name: {"dtype": "F32", "shape": list(array.shape), "data_offsets": [0, len(data)]}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data
