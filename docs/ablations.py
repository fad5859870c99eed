#!/usr/bin/env python3
"""Ablations and sensitivity of both presets, as the tables of docs/ablations.md.

    python3 docs/ablations.py DATA > docs/ablations.md

DATA is a folder of feature packs with labels. Every row is one run of `ultta eval` with a settings file; nothing
but that file differs. Needs the Rust toolchain and Python's standard library.
"""

import collections
import json
import pathlib
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
ULTTA = ROOT / "target/release/ultta"
PROTOCOLS = {"iid": "shuffled", "sorted": "class-sorted", "partial:0.2": "20 % of the classes",
             "iid+weak": "shuffled, poor head"}



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
ABLATIONS = [
    ("as it is", PAPER["full"]),
    ("no gate", PAPER["without selective filtering"]),
    ("prototypes frozen", PAPER["t frozen"]),
    ("prior frozen", PAPER["π frozen"]),
]
SINGLE_TEMPERATURE = {"paper": PAPER["single τ"], "default": {"calibration": {"rule": "off"}}}
NO_GUARDS = {
    "paper": PAPER["without guards"] | {"guard": {"enabled": False}},
    "default": {"guard": {"enabled": False}},
}
# Parts that only the default has.
DEFAULT_PARTS = [
    ("no scenes", {"": {"scenes": False}}),
    ("prior without stay and near", {"advanced": {"prior_stays": []}}),
    ("no restart", {"advanced": {"restart_at": float("inf")}}),
    ("no floor", {"advanced": {"floor": 0.0}}),
]
PAPER_RANGES = [
    *[(f"η = {v}", {"prototypes": {"eta": v}}) for v in (0.05, 0.1, 0.2)],
    *[(f"β = {v}", {"temperature": {"beta": v}}) for v in (0.8, 0.9, 0.95)],
    *[(f"gate keeps {v:.0%}", {"gate": {"keep": v}}) for v in (0.3, 0.4, 0.5, 0.6, 0.9)],
    *[(f"α = {v}", {"prototypes": {"alpha": v}}) for v in (0.1, 1.0, 10.0)],
    *[(f"γ = {v} per class", {"prior": {"gamma": v}}) for v in (0.1, 1.0, 10.0)],
]
DEFAULT_RANGES = [
    *[(f"shrink k = {v}", {"advanced": {"shrink": v}}) for v in (1.0, 3.0, 10.0)],
    *[(f"half of the trust at {v:.0f} samples per class", {"advanced": {"trust_samples": v}}) for v in (60.0, 120.0, 240.0)],
    *[(f"largest trust (`trust_max`) = {v}", {"advanced": {"trust_max": v}}) for v in (3.0, 6.0, 12.0)],
    *[(f"dead zone δ = {v}", {"advanced": {"prior_dead_zone": v}}) for v in (0.3, 0.4, 0.5, 0.6, 0.8, 1.2)],
    *[(f"background power {v}", {"advanced": {"prior_background": v}}) for v in (0.0, 0.3, 0.6, 0.8, 1.0)],
    *[(f"prior half-lives {v}", {"advanced": {"prior_half_lives": v}})
      for v in ([8.0, 32.0, 128.0, 512.0], [4.0, 16.0, 64.0, 256.0, float("inf")], [16.0, 256.0])],
    *[(f"prior smoothed by {v} per class", {"advanced": {"prior_smoothing": v}}) for v in (0.02, 0.05, 0.2)],
    *[(f"evidence half-life {v:.0f} per class", {"advanced": {"half_life_per_class": v}}) for v in (16.0, 32.0, 64.0)],
    *[(f"gate keeps {v:.0%}", {"gate": {"keep": v}}) for v in (0.3, 0.6, 0.9)],
    *[(f"update every {v}", {"advanced": {"update_every": v}}) for v in (64, 128, 256)],
]


def toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def run(data, preset, changes):
    method = "ul-tta" if preset == "default" else "ul-tta:paper"
    text = f'[method.ul_tta]\npreset = "{preset}"\n'
    for section, keys in sorted(changes.items()):
        if section:
            text += f"[{section}]\n" if section == "guard" else f"[method.ul_tta.{section}]\n"
        text += "".join(f"{key} = {toml(value)}\n" for key, value in keys.items())
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "settings.toml")
        config.write_text(text)
        command = [ULTTA, "eval", "--data", data, "--methods", method, "--protocols", ",".join(PROTOCOLS),
                   "--seeds", "0-4", "--config", config, "--out", folder, "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{text}\n{done.stderr}")
        return json.loads(done.stdout)["runs"]


def row(name, runs):
    cells = [name]
    for protocol in PROTOCOLS:
        mine = [r for r in runs if r["protocol"] == protocol]
        gains = collections.defaultdict(list)
        for r in mine:
            gains[r["dataset"]].append(100 * (r["top1"] - r["zero_shot"]["top1"]))
        means = [sum(g) / len(g) for g in gains.values()]
        ece = sum(r["ece"] for r in mine) / sum(r["zero_shot"]["ece"] for r in mine)
        cells += [f"{sum(means) / len(means):+.2f}", f"{min(means):+.2f}", f"{ece:.2f}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def table(data, title, preset, variants):
    print(f"\n## {title}\n")
    heads = [f"{name}: {what}" for name in PROTOCOLS.values() for what in ("top-1", "worst stream", "ECE ×")]
    print("| variant | " + " | ".join(heads) + " |")
    print("|---|" + "---|" * len(heads))
    for name, changes in variants:
        row(name, run(data, preset, changes))


def main():
    data = sys.argv[1]
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    print("# Ablations and sensitivity\n\n    python3 docs/ablations.py DATA > docs/ablations.md\n")
    print("Mean change of top-1 against zero-shot on the same stream (points, predict first, then learn), the change on")
    print("the worst stream, and calibrated ECE over zero-shot's; means over the packs and five seeds. One setting differs")
    print("from the preset at a time. The labels served for scoring only.")
    for preset in ("paper", "default"):
        table(data, f"What each part does: `{preset}`", preset, [
            *ABLATIONS, ("single temperature", SINGLE_TEMPERATURE[preset]), ("no guards", NO_GUARDS[preset]),
            *(DEFAULT_PARTS if preset == "default" else [])])
    table(data, "Sensitivity of `paper`", "paper", PAPER_RANGES)
    table(data, "Sensitivity of `default`", "default", DEFAULT_RANGES)


if __name__ == "__main__":
    main()
