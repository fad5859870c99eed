"""Detection delay and false alarms beside river's and alibi-detect's detectors, on the same numbers.

    pip install numpy safetensors river          # in an environment of its own: river wants NumPy 2, alibi-detect NumPy 1
    pip install "numpy<2" safetensors alibi-detect
    python3 crates/core/benches/alarms.py --ultta target/release/ultta --packs ../shared/data ../shared/wide

Every stream is a pack, shuffled; at scene 1,000 something changes. The alarms of `ultta run --json` are those of the program. The other
detectors get the four numbers that the program watches (look, level, contrast, mix), computed here again, one detector each; the first
that fires counts. A row of the table: median delay in scenes, share found within 2,000 scenes, and alarms before the change.
Detectors that are not installed are left out, and the table says so.

With `--unchanged` only false alarms are counted: every pack under every head, shuffled, and in shots of 30 near-copies, where scenes are found
by the program itself.
"""

import argparse
import copy
import json
import subprocess
import tempfile
from collections import deque
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

CHANGE, LENGTH = 1000, 3000

# The promise that alibi-detect is asked for: one false alarm in so many scenes.
ALIBI_SCENES = 1000


def load(folder, head="head.safetensors"):
    with safe_open(folder / "features.safetensors", "np") as f:
        z, y = f.get_tensor("features").astype(np.float32), f.get_tensor("labels")
    with safe_open(folder / head, "np") as f:
        prototypes, scale = f.get_tensor("prototypes").astype(np.float32), float(f.metadata()["logit_scale"])
    return z / np.linalg.norm(z, axis=1, keepdims=True), y, prototypes, scale


def stream(kind, z, y, other, rng):
    """The rows of a stream that changes, or of one that does not (kind "none")."""
    classes = np.unique(y)
    first, later = np.arange(len(z)), np.arange(len(z))
    if kind == "mix, a fifth of the classes":
        later = np.flatnonzero(np.isin(y, classes[: max(2, len(classes) // 5)]))
    if kind == "mix, the other half":
        first, later = np.flatnonzero(y <= np.median(classes)), np.flatnonzero(y > np.median(classes))
    before = z[rng.choice(first, CHANGE)]
    after = z[rng.choice(later, LENGTH - CHANGE)].copy()
    mean = z.mean(0)
    direction = rng.normal(size=z.shape[1]).astype(np.float32)
    direction /= np.linalg.norm(direction)
    noise = rng.normal(size=after.shape).astype(np.float32) / z.shape[1] ** 0.5
    if kind == "covered lens":
        after = 0.3 * mean + 0.05 * after + 0.5 * direction + 0.02 * noise
    if kind == "night":
        after = mean + 0.6 * (after - mean) + 0.25 * direction
    if kind == "blur":
        after = mean + 0.7 * (after - mean)
    if kind == "moved camera":
        after = after + 0.2 * direction
    if kind == "wrong preprocessing":
        after = after + 0.35 * direction
    if kind == "another domain":
        after = other[rng.choice(len(other), LENGTH - CHANGE)].copy()
    if kind == "frozen feed":
        after = np.repeat(after[:1], LENGTH - CHANGE, 0)
    rows = np.concatenate([before, after])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def numbers(rows, prototypes, scale):
    """Look, level, contrast and mix of every row."""
    logits = scale * rows @ prototypes.T
    labels = logits.argmax(1)
    level = logits.mean(1)
    contrast = 0.5 * np.log(((logits - level[:, None]) ** 2).mean(1) + 1e-9)
    look, mix = np.zeros(len(rows)), np.zeros(len(rows))
    total, recent, weight, fade = np.zeros(rows.shape[1]), np.zeros(rows.shape[1]), 0.0, 0.5 ** (1 / 16)
    last, earlier, left, rng = deque(), [], 0, np.random.default_rng(0)
    for i, z in enumerate(rows):
        m, r = total / max(i, 1), recent / max(weight, 1.0)
        look[i] = (z - m) @ (r - m) / np.sqrt(((r - m) ** 2).sum() + 1e-12)
        total, recent, weight = total + z, recent * fade + z, weight * fade + 1
        mix[i] = last.count(labels[i]) - earlier.count(labels[i])
        if len(last) == 64:
            oldest, left = last.popleft(), left + 1
            if len(earlier) < 64:
                earlier.append(oldest)
            elif (place := rng.integers(left)) < 64:
                earlier[place] = oldest
        last.append(labels[i])
    return np.stack([look, level, contrast, mix], 1)


def program(ultta, rows, folder, pack):
    path = Path(folder) / "stream.safetensors"
    save_file({"features": np.ascontiguousarray(rows, dtype=np.float32)}, path)
    command = [ultta, "run", "--features", path, "--head", pack / "head.safetensors", "--normalize", "--json", "--quiet", "--set", "scenes=false"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [alarm["id"] for alarm in json.loads(out)["alarms"]]


def told(ultta, head, *flags):
    """Scenes and alarms of a run."""
    command = [ultta, "run", "--head", head, "--normalize", "--json", "--quiet", *flags]
    out = json.loads(subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout)
    return out["health"]["scenes"], out["health"]["alarms"]


def shots(z, rng, frames=30, most=1000, share=0.07):
    """Pictures in random order, each as near-copies that wander around it (docs/protocols.md, `shots`)."""
    z = z[rng.permutation(len(z))[:most]]
    reach = np.sqrt(2 * share * (1 - (z.mean(0) ** 2).sum()))
    rows = np.empty((len(z), frames, z.shape[1]), np.float32)
    drift = rng.normal(size=z.shape)
    for frame in range(frames):
        rows[:, frame] = z + reach * drift / z.shape[1] ** 0.5
        drift = 0.9 * drift + (1 - 0.9**2) ** 0.5 * rng.normal(size=z.shape)
    rows = rows.reshape(-1, z.shape[1])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def unchanged(options, folders):
    """False alarms on every pack under every head."""
    print("| stream | heads | seeds | scenes | alarms | promised at most |\n|---|---|---|---|---|---|")
    for kind, seeds in [("shuffled", range(options.seeds)), ("in shots of 30", range(max(1, options.seeds // 4)))]:
        scenes, alarms, where, heads = 0, 0, {}, 0
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "stream.safetensors"
            for folder in folders:
                names = sorted(p.name for p in folder.glob("head*.safetensors"))
                heads += len(names)
                for seed in seeds:
                    flags = ["--features", folder / "features.safetensors", "--shuffle", seed]
                    if kind != "shuffled":
                        save_file({"features": shots(load(folder, names[0])[0], np.random.default_rng(seed))}, path)
                        flags = ["--features", path]
                    for name in names:
                        found, raised = told(options.ultta, folder / name, *flags)
                        scenes, alarms = scenes + found, alarms + raised
                        if raised:
                            key = f"{folder.parent.name}/{folder.name} {name}"
                            where[key] = where.get(key, 0) + raised
        named = "".join(f"; {n} on {key}" for key, n in where.items())
        print(f"| {kind} | {heads} | {len(seeds)} | {scenes:,} | {alarms}{named} | {scenes / 100_000:.1f} |", flush=True)


def river_detectors():
    try:
        from river import drift
    except ImportError:
        return {}
    return {"river ADWIN": lambda: drift.ADWIN(), "river Page-Hinkley": lambda: drift.PageHinkley(), "river KSWIN": lambda: drift.KSWIN(seed=0)}


def run_river(make, values):
    """Rows at which any of the four detectors fires; each starts anew after it fired."""
    fired = []
    detectors = [make() for _ in range(4)]
    for i, row in enumerate(values[128:], start=128):
        for detector, value in zip(detectors, row):
            detector.update(float(value))
            if detector.drift_detected:
                fired.append(i)
    return sorted(set(fired))


def alibi():
    try:
        from alibi_detect.cd import CVMDriftOnline
    except ImportError:
        return None

    # Its thresholds come from simulated streams, ten times as many as the scenes of its promise; one alarm in 100,000 would take a million. They go by
    # ranks, so they are the same for every stream and are simulated once. The first 500 scenes are its reference.
    prepared = CVMDriftOnline(np.zeros((500, 4), np.float32), ert=ALIBI_SCENES, window_sizes=[20, 40], n_bootstraps=10 * ALIBI_SCENES, batch_size=100, verbose=False)

    def run(values, changes):
        detector = copy.copy(prepared)
        detector.x_ref = values[128:628].astype(np.float32)
        detector._configure_ref()
        detector.reset_state()
        fired = []
        for i, row in enumerate(values[628:], start=628):
            if detector.predict(row.astype(np.float32))["data"]["is_drift"]:
                fired.append(i)
                if changes and i >= CHANGE:
                    break
                detector.reset_state()
        return fired

    return run


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--ultta", required=True)
    arguments.add_argument("--packs", nargs="+", type=Path, required=True)
    arguments.add_argument("--seeds", type=int, help="orders of each pack; 3, with --unchanged 20")
    arguments.add_argument("--unchanged", action="store_true", help="only false alarms, on every pack and head")
    arguments.add_argument("--kinds", help="only these kinds of change, with commas; a part of the name is enough")
    options = arguments.parse_args()
    options.seeds = options.seeds or (20 if options.unchanged else 3)
    folders = sorted({p.parent for root in options.packs for p in root.rglob("features.safetensors")})
    if options.unchanged:
        return unchanged(options, folders)
    detectors = {name: (lambda values, _, make=make: run_river(make, values)) for name, make in river_detectors().items()}
    if run := alibi():
        detectors[f"alibi-detect CVM, one in {ALIBI_SCENES:,}"] = run
    print("detectors beside ours:", ", ".join(detectors) or "none are installed")
    print("\n| change | detector | median delay, scenes | found within 2,000 | false alarms in scenes |\n|---|---|---|---|---|")
    kinds = ["none", "covered lens", "night", "blur", "moved camera", "wrong preprocessing", "another domain", "mix, a fifth of the classes", "mix, the other half", "frozen feed"]
    if options.kinds:
        kinds = [kind for kind in kinds if any(part in kind for part in options.kinds.split(","))]
    with tempfile.TemporaryDirectory() as scratch:
        for kind in kinds:
            delays, early, runs = {}, {}, 0
            for folder in folders:
                z, y, prototypes, scale = load(folder)
                other = None
                if kind == "another domain":
                    if "pacs" not in str(folder):
                        continue
                    twin = "pacs-cartoon" if "art_painting" in str(folder) else "pacs-art_painting"
                    other = load(folder.parent.parent / twin / folder.name)[0]
                for seed in range(options.seeds):
                    runs += 1
                    rows = stream(kind, z, y, other, np.random.default_rng(seed))
                    values = numbers(rows, prototypes, scale)
                    fired = {"ultta": program(options.ultta, rows, scratch, folder)}
                    fired.update({name: run(values, kind != "none") for name, run in detectors.items()})
                    for name, at in fired.items():
                        if kind == "none":
                            early.setdefault(name, []).append(len(at))
                            continue
                        early.setdefault(name, []).append(sum(i < CHANGE for i in at))
                        found = [i - CHANGE + 1 for i in at if i >= CHANGE]
                        delays.setdefault(name, []).append(found[0] if found else np.inf)
            for name in early:
                # What goes before is each detector's reference.
                watched = (LENGTH if kind == "none" else CHANGE) - (628 if "alibi" in name else 128)
                false = sum(early[name])
                cells = ["–", "–"]
                if kind != "none":
                    d = np.array(delays[name])
                    cells = [f"{np.median(d):.0f}" if np.isfinite(np.median(d)) else "–", f"{100 * np.isfinite(d).mean():.0f} %"]
                print(f"| {kind} | {name} | {cells[0]} | {cells[1]} | {false} in {runs * watched:,} |", flush=True)


if __name__ == "__main__":
    main()
