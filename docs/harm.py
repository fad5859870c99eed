#!/usr/bin/env python3
"""Where the default gains and where it loses, as the tables of docs/harm.md.

    ultta eval --data DATA --data WIDE --methods ul-tta --protocols harm --seeds 0-4 --out runs/harm
    ultta eval --data DATA --data WIDE --methods ul-tta --protocols iid+garbage:1:noise --seeds 0-4 --out runs/harm
    python3 docs/harm.py runs/harm > docs/harm.md

The second command is the control of the first: one row of garbage instead of 2,500. `ultta report runs/harm --html harm.html` shows the same matrix in colour. Needs Python's standard library only.
"""

import collections
import json
import pathlib
import sys

PROTOCOLS = ["iid", "sorted", "runs", "dirichlet:0.1", "dirichlet:0.01", "partial:0.2", "partial:0.5", "zipf", "few:5:64",
             "iid+weak", "sorted+weak", "partial:0.2+weak", "iid+open:0.3", "iid+shots:10", "iid+shots:30",
             "iid+shots:100", "runs+shots:30", "iid+night:500", "iid+garbage:2500:noise", "iid+garbage:2500:cone",
             "iid+garbage:2500:flip", "iid+garbage:2500:still"]
# figure: its name, factor to points, key of its interval, what counts as a loss, decimals
FIGURES = [("top1", "Top-1, points", 100, "gain", -0.5, 1), ("ece", "ECE, points", 100, "ece_change", 1.0, 1),
           ("nll", "NLL, nats", 1, "nll_change", 0.02, 2)]
# the same windows after one row of garbage: what they are without any harm of garbage
CONTROL = "iid+garbage:1:noise"


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def end(interval, which):
    return interval[which] if isinstance(interval, list) else interval[("low", "high")[which]]


def main():
    cells = collections.defaultdict(list)
    for path in pathlib.Path(sys.argv[1]).rglob("summary.json"):
        run = json.loads(path.read_text())
        name = run["dataset"] if run["dataset"].startswith("whurs19") else run["dataset"].split("/")[0]
        cells[run["protocol"], name].append(run)
    control = {pack: mean(100 * r["after_garbage"]["worst_gain"] for r in runs)
               for (protocol, pack), runs in cells.items() if protocol == CONTROL}
    cells = {key: runs for key, runs in cells.items() if key[0] != CONTROL}
    packs = sorted({pack for _, pack in cells})
    seeds = {len(runs) for runs in cells.values()}
    print(f"""# Gain and harm

    ultta eval --data DATA --data WIDE --methods ul-tta --protocols harm --seeds 0-4 --out runs/harm
    ultta eval --data DATA --data WIDE --methods ul-tta --protocols iid+garbage:1:noise --seeds 0-4 --out runs/harm
    python3 docs/harm.py runs/harm > docs/harm.md

The default, as it ships, against zero-shot on the same samples, predict first, then learn; every cell is the mean over {max(seeds)}
seeds. The settings were chosen on these packs: these are not left-out figures. ▼ marks a loss that counts: top-1 more than 0.5
points below zero-shot, ECE more than 1 point or NLL more than 0.02 nats above, and a paired bootstrap interval that leaves out 0
(under `shots` whole shots are redrawn). `–` is not applicable: no other pack of the same encoder has strangers to offer. Protocols: [protocols.md](protocols.md).
""")
    tables, losses = [], []
    for key, name, factor, interval, limit, digits in FIGURES:
        rows, lost = [], []
        for protocol in PROTOCOLS:
            row = []
            for pack in packs:
                runs = cells.get((protocol, pack))
                if not runs:
                    row.append("–")
                    continue
                change = mean(factor * (r[key] - r["zero_shot"][key]) for r in runs)
                if key == "top1":
                    loses = change < limit and mean(end(r["intervals"][interval], 1) for r in runs) < 0
                else:
                    loses = change > limit and mean(end(r["intervals"][interval], 0) for r in runs) > 0
                row.append(f"{change:+.{digits}f}" + ("▼" if loses else ""))
                if loses:
                    lost.append((change, protocol, pack))
            rows.append(f"| {protocol} | " + " | ".join(row) + " |")
        head = "| | " + " | ".join(packs) + " |\n|" + "---|" * (len(packs) + 1)
        tables.append(f"## {name}: change against zero-shot\n\n{head}\n" + "\n".join(rows))
        worst = sorted(lost) if key == "top1" else sorted(lost, reverse=True)
        named = "; ".join(f"{pack} {protocol} {change:+.{digits}f}" for change, protocol, pack in worst)
        losses.append(f"- **{name}**: {len(lost)} of {len(cells)} cells lose ({100 * len(lost) / len(cells):.1f} %): {named}.")
    print("\n".join(losses))
    garbage = [(mean(100 * r["after_garbage"]["worst_gain"] for r in runs), protocol, pack)
               for (protocol, pack), runs in cells.items() if runs[0].get("after_garbage")]
    below = sorted(g for g in garbage if g[0] < -2)
    print(f"- **After garbage**, the worst window of 300 clean samples, mean over seeds: more than 2 points below zero-shot in "
          f"{len(below)} of {len(garbage)} cells: " + "; ".join(f"{pack} {protocol} {g:+.1f}" for g, protocol, pack in below) + ".")
    if control:
        alone = "; ".join(f"{pack} {g:+.1f}" for pack, g in sorted(control.items(), key=lambda c: c[1]) if g < -2)
        added = sorted((g - control[pack], protocol, pack, g) for g, protocol, pack in garbage if g < -2 and g < control[pack] - 0.5)
        print(f"- **What garbage adds**: after one row of garbage instead of 2,500 the worst window is below −2 as well on {alone}: the worst of "
              f"many windows of 300 noisy rows. Garbage makes it worse by more than 0.5 in {len(added)} of the {len(below)} cells: " +
              "; ".join(f"{pack} {protocol} {g:+.1f} ({control[pack]:+.1f} without)" for _, protocol, pack, g in added) + ".")
    shots = []
    for (protocol, pack), runs in sorted(cells.items()):
        if not runs[0].get("shots"):
            continue
        switches = [mean(r["shots"]["switches"][who] for r in runs) for who in ("adapted", "zero_shot")]
        top1 = mean(100 * (r["top1"] - r["zero_shot"]["top1"]) for r in runs)
        ece = mean(100 * (r["ece"] - r["zero_shot"]["ece"]) for r in runs)
        shots.append((top1 < -0.5 or ece > 1.5 or switches[0] > switches[1] / 2, protocol, pack, top1, ece, switches))
    bad = [s for s in shots if s[0]]
    print(f"- **Shots**: top-1 at least zero-shot's − 0.5, ECE at most zero-shot's + 1.5 and at most half of its switches within a "
          f"shot in {len(shots) - len(bad)} of {len(shots)} cells; not in " +
          "; ".join(f"{pack} {protocol} ({top1:+.1f} top-1, {ece:+.1f} ECE, {s[0]:.1f} of {s[1]:.1f} switches)"
                    for _, protocol, pack, top1, ece, s in bad) + ".")
    nights = []
    for pack in packs:
        visits = collections.defaultdict(list)
        for run in cells.get(("iid+night:500", pack), []):
            count = collections.Counter()
            for visit in run["course"]["domains"]:
                again = count[visit["name"]] > 0
                count[visit["name"]] += 1
                visits[visit["name"], again].append((visit["n"], 100 * (visit["top1"] - visit["zero_shot_top1"])))
        for state in ("plain", "shifted"):
            first, again = ([(n * gain, n) for n, gain in visits[state, later]] for later in (False, True))
            if again:
                nights.append((pack, state, *(sum(g for g, _ in rows) / sum(n for _, n in rows) for rows in (first, again))))
    bad = [night for night in nights if night[3] < night[2] - 0.5]
    print(f"- **Night**: gain over zero-shot on the first visit to a state and on all returns to it, mean over seeds: returns gain at least as much, less 0.5, in "
          f"{len(nights) - len(bad)} of {len(nights)} (pack, state); not in " +
          ("; ".join(f"{pack} {state} ({first:+.1f}, then {again:+.1f})" for pack, state, first, again in bad) or "none") +
          f". On the mean {mean(n[2] for n in nights):+.1f}, then {mean(n[3] for n in nights):+.1f}.")
    print("\n" + "\n\n".join(tables))


if __name__ == "__main__":
    main()
