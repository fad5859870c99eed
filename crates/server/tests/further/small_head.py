"""Writes a small head and a stream of rows: python3 small_head.py HEAD.safetensors FEATURES.npy LABELS.json [treacherous]

A treacherous stream has images far from the texts and is seen class by class for a while, again and again: rules that
nothing holds collapse on it.
"""

import json
import random
import struct
import sys

TREACHEROUS = sys.argv[4:] == ["treacherous"]
CLASSES, DIM, ROWS = (40 if TREACHEROUS else 12), 16, 4000
rng = random.Random(0)


def unit(row):
    norm = sum(v * v for v in row) ** 0.5
    return [v / norm for v in row]


def direction():
    return [rng.gauss(0, DIM**-0.5) for _ in range(DIM)]


def mix(*parts):
    return [sum(weight * part[i] for weight, part in parts) for i in range(DIM)]


names = ["guitar", "pizza", "owl", "ferry", "cactus", "sewing machine", "lighthouse", "teapot", "zebra", "umbrella", "tractor", "violin"]
rows, labels = [], []
if TREACHEROUS:
    names = [f"class {c}" for c in range(CLASSES)]
    texts, images = direction(), direction()
    own = [direction() for _ in range(CLASSES)]
    head = [unit(mix((1, o), (0.8, texts))) for o in own]
    centres = [mix((1, images), (0.8, o), (0.4, direction())) for o in own]
    for i in range(ROWS):
        labels.append((i % 600 // 60 + i // 600 * 5) % CLASSES if i % 600 < 300 else rng.randrange(CLASSES))
        rows.extend(unit(mix((1, centres[labels[-1]]), (0.6, direction()))))
else:
    head = [unit([rng.gauss(0, 1) for _ in range(DIM)]) for _ in range(CLASSES)]
    # A mix that leans towards the first classes, away from the anchors by one common shift.
    shift = [rng.gauss(0, 0.12) for _ in range(DIM)]
    for _ in range(ROWS):
        labels.append(min(int(rng.expovariate(0.4)), CLASSES - 1))
        anchor = head[labels[-1]]
        rows.extend(unit([a + s + rng.gauss(0, 0.3) for a, s in zip(anchor, shift)]))
data = struct.pack(f"<{CLASSES * DIM}f", *[v for row in head for v in row])
header = {
    "__metadata__": {"classes": json.dumps(names), "logit_scale": "40" if TREACHEROUS else "20"},
    "prototypes": {"dtype": "F32", "shape": [CLASSES, DIM], "data_offsets": [0, len(data)]},
}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data)
json.dump(labels, open(sys.argv[3], "w"))
header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({ROWS}, {DIM}), }}\n".encode()
with open(sys.argv[2], "wb") as file:
    file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack(f"<{len(rows)}f", *rows))
