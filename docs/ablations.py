#!/usr/bin/env python3
"""Ablations and sensitivity of both presets: the tables of docs/ablations.md between their marks, and nothing else of it.

    cargo build --release
    python3 docs/ablations.py DATA WIDE [TABLE …]

DATA and WIDE are folders of feature packs with labels. Every row is one run of `ultta eval` with a settings file; nothing but that file differs.
Runs are kept below runs/ablations/ and are not made again: remove the folder after the method has changed. `ULTTA` in the environment names another
program than target/release/ultta. Needs Python's standard library.
"""

import collections
import json
import os
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
ULTTA = os.environ.get("ULTTA", ROOT / "target/release/ultta")
RUNS, PAGE = ROOT / "runs/ablations", ROOT / "docs/ablations.md"
PROTOCOLS = {"iid": "shuffled", "sorted": "class-sorted", "partial:0.2": "20 % of the classes",
             "iid+weak": "shuffled, poor head"}
SHOTS = {"iid+shots:10": "ten copies of a picture"}
NEW_PROTOCOLS = {"iid": "iid", "sorted": "sorted", "partial:0.2": "partial:0.2", "sorted+weak": "sorted+weak", "iid+shots:30": "iid+shots:30",
                 "iid+garbage:2500:noise": "noise, then clean", "iid+garbage:2500:cone": "cone, then clean"}
# of the tables of `paper`, of the parts of `default`, and of all others
SEEDS, FEWER_SEEDS = "0-4", "0-1"


def paper_switches() -> dict:
    """The switches of the paper's table, from the file that `ultta suite paper` reads: row -> {section: {key: value}}."""
    rows = tomllib.loads((ROOT / "crates/eval/src/suite/ablations.toml").read_text())["row"]
    switches = {}
    for row in rows:
        settings = {}
        for key, value in row["settings"].items():
            section, name = key.split(".")
            value = {"true": True, "false": False}.get(value, value)
            settings.setdefault(section, {})[name] = value if isinstance(value, bool) else float(value)
        switches[row["name"]] = settings
    return switches


PAPER = paper_switches()
# section -> {key: value}: the tables below [method.ul_tta]; `guard` is a table of its own
NO_GATE = {"paper": PAPER["without selective filtering"], "default": {"gate": {"keep": 1.0}}}
ABLATIONS = [
    ("prototypes frozen", PAPER["t frozen"]),
    ("prior frozen", PAPER["π frozen"]),
]
SINGLE_TEMPERATURE = {"paper": PAPER["single τ"], "default": {"calibration": {"rule": "off"}}}
NO_GUARDS = {
    "paper": PAPER["without guards"] | {"guard": {"enabled": False}},
    "default": {"guard": {"enabled": False}},
}
# Parts that came after the default's first form.
NEW_PARTS = [
    ("as it ships", {}),
    ("no scenes", {"": {"scenes": False}}),
    ("garbage teaches", {"": {"spot_garbage": False}}),
    ("garbage teaches, no restart", {"": {"spot_garbage": False}, "advanced": {"restart_at": float("inf")}}),
    ("halves say nothing of the head", {"advanced": {"halves_share": 0.0}}),
    ("prior without stay and near", {"advanced": {"prior_stays": []}}),
    ("what stays is not lifted", {"advanced": {"prior_stay_lift": 0.0}}),
    ("no frozen share", {"advanced": {"frozen_share": 0.0}}),
    ("no floor", {"advanced": {"floor": 0.0}}),
    ("no restart", {"advanced": {"restart_at": float("inf")}}),
    ("restart at a factor of 2", {"advanced": {"restart_at": 2.0}}),
    ("restart at a factor of 4", {"advanced": {"restart_at": 4.0}}),
    ("frozen logits never sharpened", {"advanced": {"sharpen_share": 0.0}}),
    ("no guard", {"guard": {"enabled": False}}),
    ("background power 0.6", {"advanced": {"prior_background": 0.6}}),
    ("prototypes frozen", {"prototypes": {"frozen": True}}),
    ("prior frozen", {"prior": {"frozen": True}}),
]
PAPER_RANGES = [
    *[(f"η = {v}", {"prototypes": {"eta": v}}) for v in (0.05, 0.1, 0.2)],
    *[(f"β = {v}", {"temperature": {"beta": v}}) for v in (0.8, 0.9, 0.95)],
    *[(f"gate keeps {v:.0%}", {"gate": {"keep": v}}) for v in (0.3, 0.4, 0.5, 0.6, 0.9)],
    *[(f"α = {v}", {"prototypes": {"alpha": v}}) for v in (0.1, 1.0, 10.0)],
    *[(f"γ = {v} per class", {"prior": {"gamma": v}}) for v in (0.1, 1.0, 10.0)],
]
# setting: what it is called, and values around the one that ships
DEFAULT_SETTINGS = {
    "shrink": ("shrink k", [1.0, 10.0]),
    "trust_samples": ("samples per class for a quarter of the trust", [10.0, 40.0]),
    "trust_max": ("largest trust", [2.5, 10.0]),
    "prior_dead_zone": ("dead zone δ", [0.2, 0.3, 0.5, 0.8]),
    "prior_background": ("background power", [0.0, 0.6, 0.8]),
    "prior_half_lives": ("half-lives of the prior", [[8.0, 32.0, 128.0, 512.0], [16.0, 256.0]]),
    "prior_smoothing": ("smoothing of the prior per class", [0.02, 0.2]),
    "prior_stays": ("stays of the prior", [[0.8, 0.95], [0.3, 0.7, 0.9, 0.98]]),
    "prior_stay_lift": ("lift of what stays", [0.4, 1.0]),
    "prior_record_decay": ("decay of the experts' records", [0.97, 0.993]),
    "prior_head_start": ("head start of the expert that stays at the start, in nats", [3.0, 12.0]),
    "half_life_per_class": ("half-life of the evidence per class", [16.0, 64.0]),
    "update_every": ("samples between the first updates", [64, 256]),
    "sharpen_share": ("how far τ_pred follows the margins", [0.4, 0.9]),
    "match_power": ("power of the match", [0.5, 0.9]),
    "margin_share": ("how far confidence follows the margins", [0.6, 0.8]),
    "halves_share": ("how far confidence follows the halves", [0.2, 0.7]),
    "scene_near": ("near, in features", [0.12, 0.5]),
    "restart_at": ("factor of a restart", [2.0, 4.0]),
    "frozen_share": ("frozen share", [0.15, 0.45]),
    "floor": ("floor", [0.003, 0.03]),
}
DEFAULT_RANGES = [
    ("as it ships", {}),
    *[(f"{name} (`{key}`) = {value}", {"advanced": {key: value}}) for key, (name, values) in DEFAULT_SETTINGS.items() for value in values],
    *[(f"gate keeps {v:.0%}", {"gate": {"keep": v}}) for v in (0.6, 1.0)],
]


def toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def settings(preset, changes):
    text = f'[method.ul_tta]\npreset = "{preset}"\n'
    for section, keys in sorted(changes.items()):
        if section:
            text += f"[{section}]\n" if section == "guard" else f"[method.ul_tta.{section}]\n"
        text += "".join(f"{key} = {toml(value)}\n" for key, value in keys.items())
    return text


def run(data, preset, changes, protocols, seeds):
    """The runs of a variant, by what it changes: the same change in two tables is one run."""
    text = settings(preset, changes)
    name = "".join(c if c.isalnum() or c in "._=" else "-" for c in f"{preset} {json.dumps(changes, sort_keys=True)}")
    folder = RUNS / name
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "settings.toml"
    config.write_text(text)
    method = "ul-tta" if preset == "default" else "ul-tta:paper"
    packs = [word for folder_ in data for word in ("--data", folder_)]
    command = [ULTTA, "eval", *packs, "--methods", method, "--protocols", ",".join(protocols),
               "--seeds", seeds, "--config", config, "--out", folder, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{text}\n{done.stderr}")
    return json.loads(done.stdout)["runs"]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def by_pack(runs, value):
    """The mean over seeds of every pack."""
    packs = collections.defaultdict(list)
    for r in runs:
        packs[r["dataset"]].append(value(r))
    return [mean(values) for values in packs.values()]


def cells(runs, protocols):
    """Mean gain, gain on the worst stream, ECE over zero-shot's."""
    found = []
    for protocol in protocols:
        mine = [r for r in runs if r["protocol"] == protocol]
        gains = by_pack(mine, lambda r: 100 * (r["top1"] - r["zero_shot"]["top1"]))
        ece = sum(r["ece"] for r in mine) / sum(r["zero_shot"]["ece"] for r in mine)
        found += [f"{mean(gains):+.2f}", f"{min(gains):+.2f}", f"{ece:.2f}"]
    return found


def new_cells(runs, protocols):
    """Changes of top-1, ECE and NLL; behind garbage top-1 and the worst window of any pack."""
    found = []
    for protocol in protocols:
        mine = [r for r in runs if r["protocol"] == protocol]
        top1, ece, nll = (mean(by_pack(mine, lambda r: factor * (r[key] - r["zero_shot"][key])))
                          for key, factor in (("top1", 100), ("ece", 100), ("nll", 1)))
        if "garbage" in protocol:
            worst = min(by_pack(mine, lambda r: 100 * r["after_garbage"]["worst_gain"]))
            found.append(f"{top1:+.1f}, {worst:+.1f}")
        else:
            found.append(f"{top1:+.1f}, {ece:+.1f}, {nll:+.2f}")
    return found


def write(name, lines):
    """Puts a table between its marks."""
    begin, end = (f"<!-- made by docs/ablations.py, {name}: {which} -->" for which in ("begin", "end"))
    page = PAGE.read_text()
    if begin not in page or end not in page:
        sys.exit(f"{PAGE}: expected the marks {begin} and {end}")
    before, rest = page.split(begin, 1)
    after = rest.split(end, 1)[1]
    PAGE.write_text(before + begin + "\n" + "\n".join(lines) + "\n" + end + after)


def table(name, data, preset, variants, protocols, seeds, told, heads):
    lines = ["| variant | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for variant, changes in variants:
        lines.append("| " + " | ".join([variant, *told(run(data, preset, changes, protocols, seeds), protocols)]) + " |")
        print(lines[-1], flush=True)
    write(name, lines)


def main():
    data, wide, *wanted = sys.argv[1:]
    parts = lambda preset: [("as it is", PAPER["full"]), ("no gate", NO_GATE[preset]), *ABLATIONS, ("single temperature", SINGLE_TEMPERATURE[preset]), ("no guards", NO_GUARDS[preset])]
    three = lambda protocols: [f"{name}: {what}" for name in protocols.values() for what in ("top-1", "worst stream", "ECE ×")]
    tables = {
        "parts of paper": ("paper", parts("paper"), PROTOCOLS, SEEDS),
        "parts of default": ("default", parts("default"), PROTOCOLS | SHOTS, SEEDS),
        "sensitivity of paper": ("paper", PAPER_RANGES, PROTOCOLS, SEEDS),
        "sensitivity of default": ("default", DEFAULT_RANGES, PROTOCOLS | SHOTS, FEWER_SEEDS),
    }
    for name, (preset, variants, protocols, seeds) in tables.items():
        if not wanted or name in wanted:
            table(name, [data], preset, variants, protocols, seeds, cells, three(protocols))
    if not wanted or "new parts" in wanted:
        table("new parts", [data, wide], "default", NEW_PARTS, NEW_PROTOCOLS, FEWER_SEEDS, new_cells, list(NEW_PROTOCOLS.values()))


if __name__ == "__main__":
    main()
