#!/usr/bin/env python3
"""Few classes: what the default does on heads of two to five classes, as the table of docs/ablations.md.

    python3 docs/few_classes.py --ultta target/release/ultta --data DATA --data WIDE

Of every pack some classes are drawn, twice for every number of classes, and the pack is cut down to these: anchors, rows and labels. Packs
that have fewer than 100 rows of them are left out. Every such pack goes through ten protocols under two seeds. `--draw N` draws other classes.
Needs Python's standard library only.
"""

import argparse
import collections
import json
import pathlib
import random
import struct
import subprocess
import tempfile

PROTOCOLS = ["iid", "sorted", "dirichlet:0.1", "dirichlet:0.01", "partial:0.5", "zipf", "iid+weak", "iid+shots:30", "iid+night:500", "iid+garbage:2500:cone"]
NUMBERS = (2, 3, 5)
DRAWS = 2
FEWEST_ROWS = 100


def read(path):
    """Tensors of a safetensors file by name, each as (type, shape, bytes), and its metadata."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    return {name: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0] : 8 + size + t["data_offsets"][1]]) for name, t in header.items()}, metadata


def write(path, tensors, metadata):
    header, offset = {"__metadata__": metadata}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def rows(tensor, which):
    """Some rows of a tensor."""
    kind, shape, data = tensor
    width = len(data) // shape[0]
    return kind, [len(which), *shape[1:]], b"".join(data[i * width : (i + 1) * width] for i in which)


def cut(folder, into, number, chosen):
    """Writes the pack with only `number` of its classes; false where it has too few rows of them."""
    head, about_head = read(folder / "head.safetensors")
    features, about = read(folder / "features.safetensors")
    labels = [label for (label,) in struct.iter_unpack("<q", features["labels"][2])]
    present = sorted(set(labels))
    classes = sorted(chosen.sample(present, min(number, len(present))))
    kept = [i for i, label in enumerate(labels) if label in classes]
    if len(classes) < number or len(kept) < FEWEST_ROWS:
        return False
    names = json.loads(about_head["classes"])
    about_head["classes"] = json.dumps([names[c] for c in classes])
    write(into / "head.safetensors", {"prototypes": rows(head["prototypes"], classes)}, about_head)
    new = [classes.index(labels[i]) for i in kept]
    packed = ("I64", [len(new)], struct.pack(f"<{len(new)}q", *new))
    write(into / "features.safetensors", {"features": rows(features["features"], kept), "labels": packed}, about)
    return True


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def changes(folder):
    """Mean change of top-1 (points), ECE (points) and NLL of every cell, by protocol."""
    cells = collections.defaultdict(list)
    for path in pathlib.Path(folder).rglob("summary.json"):
        run = json.loads(path.read_text())
        cells[run["protocol"], run["dataset"]].append(run)
    found = collections.defaultdict(list)
    for (protocol, _), runs in cells.items():
        found[protocol].append([mean(f * (r[key] - r["zero_shot"][key]) for r in runs) for key, f in (("top1", 100), ("ece", 100), ("nll", 1))])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ultta", default="ultta")
    parser.add_argument("--data", action="append", required=True, type=pathlib.Path)
    parser.add_argument("--draw", type=int, default=0)
    given = parser.parse_args()
    chosen = random.Random(given.draw)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        for number in NUMBERS:
            for root in given.data:
                for head in sorted(root.rglob("head.safetensors")):
                    name = "-".join(head.parent.relative_to(root).parts).replace(".", "")
                    for draw in range(DRAWS):
                        cut(head.parent, scratch / f"packs-{number}" / f"{name}-{draw}" / "encoder", number, chosen)
            subprocess.run([given.ultta, "eval", "--data", scratch / f"packs-{number}", "--methods", "ul-tta", "--protocols", ",".join(PROTOCOLS), "--seeds", "0-1", "--out", scratch / f"runs-{number}"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = {number: changes(scratch / f"runs-{number}") for number in NUMBERS}
    print("| classes | packs | " + " | ".join(PROTOCOLS) + " | lose top-1 | by more than 2 | worst | ECE | NLL, worst |")
    print("|---" * (len(PROTOCOLS) + 7) + "|")
    for number, by in found.items():
        cells = [cell for protocol in PROTOCOLS for cell in by[protocol]]
        shown = " | ".join(f"{mean(c[0] for c in by[protocol]):+.2f}" for protocol in PROTOCOLS)
        lose = [sum(c[0] < limit for c in cells) for limit in (-0.5, -2)]
        print(f"| {number} | {len(by['iid'])} | {shown} | {lose[0]} of {len(cells)} | {lose[1]} | {min(c[0] for c in cells):+.1f} | {mean(c[1] for c in cells):+.2f} | {max(c[2] for c in cells):+.2f} |")


if __name__ == "__main__":
    main()
