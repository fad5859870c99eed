"""What is promised beside the answers, held to labels: rejection of strangers by cost, and sets of classes.

    python3 docs/promises.py unknown --ultta target/release/ultta --data ../shared/data --out runs-unknown
    python3 docs/promises.py sets --ultta target/release/ultta --data ../shared/data --data ../shared/wide --out runs-sets

Runs `ultta eval` where run folders are missing, then prints the tables of docs/estimates.md.
"""

import argparse
import json
import math
import statistics
import struct
import subprocess
import tempfile
from pathlib import Path


def run(args, name, config, methods, protocols, seeds, data):
    out = Path(args.out) / name
    out.mkdir(parents=True, exist_ok=True)
    file = out / "config.toml"
    file.write_text(config)
    for folder in data:
        command = [args.ultta, "eval", "--methods", methods, "--protocols", ",".join(protocols), "--seeds", seeds]
        command += ["--config", file, "--out", out / "runs", "--json", *folder]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    found = []
    for path in sorted((out / "runs").glob("**/summary.json")):
        summary = json.loads(path.read_text())
        windows = [json.loads(text) for text in (path.parent / "windows.jsonl").read_text().splitlines()]
        found.append((summary, windows))
    return found


#: One encoder under several names: strangers are rows of the same encoder.
SAME = {"clip-vit-b32": "openai/clip-vit-base-patch32", "clip-vit-b-32": "openai/clip-vit-base-patch32"}


def named_alike(folders, out):
    """All packs in one folder, each encoder under one name."""
    for folder in folders:
        for file in sorted(Path(folder).glob("*/*/*.safetensors")):
            copy = out / file.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            raw = file.read_bytes()
            start = 8 + struct.unpack("<Q", raw[:8])[0]
            header = json.loads(raw[8:start])
            encoder = header.get("__metadata__", {}).get("encoder")
            if encoder not in SAME:
                copy.symlink_to(file.resolve())
                continue
            header["__metadata__"]["encoder"] = SAME[encoder]
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            copy.write_bytes(struct.pack("<Q", len(text)) + text + raw[start:])


def unknown(args):
    with tempfile.TemporaryDirectory() as folder:
        named_alike(args.data, Path(folder))
        rejected(args, [["--data", folder]])


def rejected(args, data):
    protocols = ["iid", "iid+open:0.1", "iid+open:0.3"]
    for score in args.scores.split(","):
        config = f'[unknown]\nscore = "{score}"\ncost = 0.05\n'
        found = run(args, score, config, "ul-tta", protocols, args.seeds or "0-2", data)
        print(f"\n{score}: per cent of the known rejected (of the strangers), AUROC\n")
        print("| pack | no strangers | 10 % strangers | 30 % strangers | AUROC |\n|---|---|---|---|---|")
        packs = sorted({s["dataset"] for s, _ in found})
        means = {p: [] for p in protocols}
        aurocs = []
        for pack in packs:
            cells = []
            for protocol in protocols:
                runs = [s for s, _ in found if s["dataset"] == pack and s["protocol"] == protocol]
                if not runs:
                    cells.append("–")
                    continue
                known = statistics.mean(s["rejection"]["known"] for s in runs)
                strangers = statistics.mean(s["rejection"]["strangers"] for s in runs)
                means[protocol].append(known)
                cells.append(f"{100 * known:.1f}" + (f" ({100 * strangers:.0f})" if "open" in protocol else ""))
                if protocol == protocols[2]:
                    aurocs.append(statistics.mean(s["rejection"]["detection"]["auroc"] for s in runs))
            cells.append(f"{aurocs[-1]:.3f}" if cells[2] != "–" else "–")
            print(f"| {pack} | " + " | ".join(cells) + " |")
        mean = [f"{100 * statistics.mean(means[p]):.1f}" if means[p] else "–" for p in protocols]
        print(f"| mean | " + " | ".join(mean) + f" | {statistics.mean(aurocs):.3f} |" if aurocs else "")
        cells = [share for shares in means.values() for share in shares]
        low, high = sum(share < 0.02 for share in cells), sum(share > 0.1 for share in cells)
        print(f"\n{len(cells)} cells: {low} below 2 %, {high} above 10 %")


def labels_of(path):
    """The labels of a features file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        start = file.tell()
        begin, end = header["labels"]["data_offsets"]
        file.seek(start + begin)
        return struct.unpack(f"<{(end - begin) // 8}q", file.read(end - begin))


def covered(args, pack, method, seed, truth, scratch):
    """Share of the rows whose set holds their label, and the mean size."""
    command = [args.ultta, "run", "--features", pack / "features.safetensors", "--head", pack / "head.safetensors"]
    command += ["--method", method, "--shuffle", seed, "--label-share", 0.05, "--coverage", 0.9, "--out", scratch, "--quiet"]
    subprocess.run([str(part) for part in command], check=True, stderr=subprocess.DEVNULL)
    rows = [json.loads(text) for text in Path(scratch).read_text().splitlines()]
    held = statistics.mean(truth[row["id"]] in row["set"] for row in rows)
    return held, statistics.mean(len(row["set"]) for row in rows), len(rows)


def sets(args):
    seeds = args.seeds or "0-19"
    first, _, last = seeds.partition("-")
    numbers = range(int(first), int(last or first) + 1)
    print("| pack | covered % | band | size | zero-shot's scores: covered % | size |\n|---|---|---|---|---|---|")
    everything = []
    with tempfile.TemporaryDirectory() as folder:
        packs = [head.parent for data in args.data for head in sorted(Path(data).glob("*/*/head.safetensors"))]
        for pack in packs:
            truth = labels_of(pack / "features.safetensors")
            scratch = f"{folder}/rows.jsonl"
            own = [covered(args, pack, "ul-tta", seed, truth, scratch) for seed in numbers]
            frozen = [covered(args, pack, "zero-shot", seed, truth, scratch) for seed in numbers[:5]]
            mean = lambda runs, key: statistics.mean(r[key] for r in runs)
            everything.append(mean(own, 0))
            # The truth of a run is one draw of its labels: 95 % of runs, by the labelled rows.
            n = own[0][2]
            reach = 1.96 * math.sqrt(0.09 / (0.05 * n) / len(own) + 0.09 / n)
            row = [100 * mean(own, 0), 100 * reach, mean(own, 1), 100 * mean(frozen, 0), mean(frozen, 1)]
            name = pack.parent.name + (f"/{pack.name}" if len(list(pack.parent.glob("*/head.safetensors"))) > 1 else "")
            print(f"| {name} | {row[0]:.1f} | ± {row[1]:.1f} | {row[2]:.2f} | {row[3]:.1f} | {row[4]:.2f} |", flush=True)
    print(f"\nmean over packs {100 * statistics.mean(everything):.1f} %")
    pacs = []
    for folder in args.data:
        for head in sorted(Path(folder).glob("pacs-*/*/head.safetensors")):
            pacs += ["--features", head.parent / "features.safetensors", "--head", head]
    if pacs:
        found = run(args, "domains", "coverage = 0.9\n", "ul-tta", ["continual+labels:0.05:100"], seeds, [pacs])
        least = []
        for _, windows in found:
            size = windows[0]["end"]
            step = max(1, math.ceil(1000 / size))  # whole windows: somewhat more than 1,000 rows
            stretches = [windows[i : i + step] for i in range(len(windows) - step + 1)]
            least.append(min(sum(w["set_held"] * w["n"] for w in s) / sum(w["n"] for w in s) for s in stretches))
        rows = sum(w["n"] for w in found[0][1])
        print(f"PACS, domain after domain, {rows} rows, {len(found)} seeds: least coverage of 1,000 samples in a row "
              f"{100 * min(least):.1f} % (median of seeds {100 * statistics.median(least):.1f} %, {sum(share >= 0.82 for share in least)} seeds keep 82 %)")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["unknown", "sets"])
parser.add_argument("--ultta", default="target/release/ultta")
parser.add_argument("--data", action="append", required=True)
parser.add_argument("--out", default="runs-promises")
parser.add_argument("--seeds")
parser.add_argument("--scores", default="cone,energy,max_softmax", help="of `unknown`")
args = parser.parse_args()
{"unknown": unknown, "sets": sets}[args.what](args)
