#!/usr/bin/env python3
"""Where the default gains and where it loses, as the tables of docs/harm.md.

    ultta eval --data DATA --data WIDE --methods ul-tta --protocols harm --seeds 0-4 --out runs/harm
    ultta eval --data DATA --data WIDE --methods ul-tta --seeds 0-4 --out runs/harm --protocols iid+garbage:1:noise,iid+garbage:2500:noise:middle,iid+garbage:2500:cone:middle,iid+garbage:2500:flip:middle
    ultta eval --data DATA/imagenet6k --data WIDE/whurs19 --heads all --methods ul-tta --protocols harm --seeds 0-4 --out runs/weak
    python3 docs/harm.py runs/harm runs/weak > docs/harm.md

The second command has the control of the first, one row of garbage instead of 2,500, and garbage in the middle of the stream; the third the
weaker heads that lie beside some packs. `ultta report runs/harm --html harm.html` shows the same matrix in colour. Needs Python's standard library only.
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
# the packs of WIDE; the others are the nine of DATA
WIDE = ("aid30", "eurosat10", "food10", "retinal8", "whurs19")
NIGHT = "iid+night:500"


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def end(interval, which):
    return interval[which] if isinstance(interval, list) else interval[("low", "high")[which]]


def read(folder):
    """Runs by protocol and pack."""
    cells = collections.defaultdict(list)
    for path in pathlib.Path(folder).rglob("summary.json"):
        run = json.loads(path.read_text())
        name = run["dataset"]
        if not name.startswith("whurs19"):
            name = name.split("/")[0] + ("+" + name.split("+")[1] if "+" in name else "")
        cells[run["protocol"], name].append(run)
    return cells


def change(runs, key, factor=1):
    return mean(factor * (r[key] - r["zero_shot"][key]) for r in runs)


def loss(runs, figure):
    """How much a cell changes, and whether that is a loss that counts."""
    key, _, factor, interval, limit, _ = figure
    by = change(runs, key, factor)
    if key == "top1":
        return by, by < limit and mean(end(r["intervals"][interval], 1) for r in runs) < 0
    return by, by > limit and mean(end(r["intervals"][interval], 0) for r in runs) > 0


def lost(cells, figure):
    """The cells that lose, the worst first."""
    all_cells = ((*loss(runs, figure), protocol, pack) for (protocol, pack), runs in cells.items())
    return sorted(((by, protocol, pack) for by, loses, protocol, pack in all_cells if loses), reverse=figure[0] != "top1")


def table(cells, packs, figure, protocols=PROTOCOLS):
    rows = []
    for protocol in protocols:
        row = []
        for pack in packs:
            if runs := cells.get((protocol, pack)):
                by, loses = loss(runs, figure)
                row.append(f"{by:+.{figure[5]}f}" + ("▼" if loses else ""))
            else:
                row.append("–")
        rows.append(f"| {protocol} | " + " | ".join(row) + " |")
    return "| | " + " | ".join(packs) + " |\n|" + "---|" * (len(packs) + 1) + "\n" + "\n".join(rows)


def worst_window(runs):
    """The worst window of a cell, every window the mean over seeds; and the mean over seeds of each one's own worst."""
    after = [r["after_garbage"] for r in runs]
    return min(100 * mean(gains) for gains in zip(*(a["gains"] for a in after))), mean(100 * a["worst_gain"] for a in after)


def worst_windows(cells, middle=False):
    """The worst window after garbage of every cell, the worst cell first: its gain, protocol and pack, then the seeds' own worst."""
    kept = {key: runs for key, runs in cells.items() if runs[0].get("after_garbage") and key[0].endswith(":middle") == middle}
    worst = {key: worst_window(runs) for key, runs in kept.items()}
    return sorted((gain, *key, own) for key, (gain, own) in worst.items())


def shots(cells):
    found = []
    for (protocol, pack), runs in sorted(cells.items()):
        if runs[0].get("shots"):
            switches = [mean(r["shots"]["switches"][who] for r in runs) for who in ("adapted", "zero_shot")]
            top1, ece = change(runs, "top1", 100), change(runs, "ece", 100)
            found.append((top1 < -0.5 or ece > 1.5 or switches[0] > switches[1] / 2, protocol, pack, top1, ece, switches))
    return found


def nights(cells, packs):
    """By pack and state: gain on the first visit and on each return, means over seeds. A visit that the stream's end cuts short counts from half its length on."""
    found, without = [], []
    for pack in packs:
        visits = collections.defaultdict(lambda: collections.defaultdict(list))
        for run in cells.get((NIGHT, pack), []):
            count = collections.Counter()
            for visit in run["course"]["domains"]:
                if visit["n"] >= 250:
                    visits[visit["name"]][count[visit["name"]]].append(100 * (visit["top1"] - visit["zero_shot_top1"]))
                count[visit["name"]] += 1
        for state, by_number in sorted(visits.items()):
            gains = [mean(by_number[number]) for number in sorted(by_number)]
            (found if len(gains) > 1 else without).append((pack, state, gains))
    return found, without


def reached(aims):
    """The table of aims: what, expected, measured, reached."""
    print("| aimed at | measured | |\n|---|---|---|")
    for what, measured, good in aims:
        print(f"| {what} | {measured} | {'reached' if good else '**not reached**'} |")


def aims(cells, packs):
    n = len(cells)
    top1, ece, nll = (lost(cells, figure) for figure in FIGURES)
    share = lambda losses: 100 * len(losses) / n
    nine = [pack for pack in packs if not pack.startswith(WIDE)]
    wide = [pack for pack in packs if pack.startswith(WIDE)]
    over = lambda group, protocol, key, factor=100: mean(change(cells[protocol, pack], key, factor) for pack in group)
    ratio = (mean(r["ece"] for pack in nine for r in cells["iid", pack])
             / mean(r["zero_shot"]["ece"] for pack in nine for r in cells["iid", pack]))
    named = lambda losses, digits: f"{losses[0][0]:+.{digits}f} ({losses[0][2]} {losses[0][1]})" if losses else "none"
    rows = [("cells that lose more than 0.5 points of top-1: at most 3 %", f"{share(top1):.1f} %", share(top1) <= 3),
            ("none loses more than 2 points", named(top1, 1), not top1 or top1[0][0] >= -2),
            ("cells with an ECE more than 1 point higher: at most 6 %", f"{share(ece):.1f} %", share(ece) <= 6),
            ("cells with an NLL more than 0.02 higher: at most 4 %", f"{share(nll):.1f} %", share(nll) <= 4),
            ("none more than 0.1 higher", named(nll, 2), not nll or nll[0][0] <= 0.1)]
    for protocol, least in [("iid", 2.2), ("sorted", 18), ("partial:0.2", 5), ("dirichlet:0.01", 9), ("few:5:64", 8)]:
        gain = over(nine, protocol, "top1")
        rows.append((f"mean gain on the {len(nine)} packs of DATA, `{protocol}`: at least +{least}", f"{gain:+.1f}", gain >= least))
    weak = over(nine, "iid+weak", "nll", 1)
    gain = over(wide, "iid", "top1")
    rows += [("their ECE, `iid`: at most half of zero-shot's", f"{ratio:.2f} of it", ratio <= 0.5),
             ("their NLL, `iid+weak`: no higher than zero-shot's", f"{weak:+.2f}", weak <= 0),
             (f"mean gain on the {len(wide)} packs of WIDE, `iid`: at least +3.0", f"{gain:+.2f}", gain >= 3.0)]
    all_shots = shots(cells)
    good = sum(not s[0] for s in all_shots)
    rows.append(("shots, every cell: top-1 at most 0.5 lower, ECE at most 1.5 higher, at most half of the switches within a shot",
                 f"{good} of {len(all_shots)} cells", good == len(all_shots)))
    windows = worst_windows(cells)
    good = sum(w[0] >= -2 for w in windows)
    rows.append(("after garbage, every cell: no window of 300 clean samples (mean over seeds) more than 2 points below zero-shot",
                 f"{good} of {len(windows)} cells", good == len(windows)))
    visits, _ = nights(cells, packs)
    good = sum(min(gains[1:]) >= gains[0] - 0.5 for _, _, gains in visits)
    rows.append(("night: each return gains at least as much as the first visit, less 0.5",
                 f"{good} of {len(visits)} (pack, state)", good == len(visits)))
    return rows


def tell_garbage(cells, control):
    windows = worst_windows(cells)
    below = [w for w in windows if w[0] < -2]
    own = sorted((own, protocol, pack) for _, protocol, pack, own in windows if own < -2)
    print(f"- **After garbage**, windows of 300 clean samples that begin every 30 samples, each the mean over seeds: more than 2 points below zero-shot in "
          f"{len(below)} of {len(windows)} cells" + (": " if below else "") + "; ".join(f"{pack} {protocol} {g:+.1f}" for g, protocol, pack, _ in below) +
          f". Each seed's own worst window, which chance makes worse, is below −2 on the mean over seeds in {len(own)}: " +
          "; ".join(f"{pack} {protocol} {g:+.1f}" for g, protocol, pack in own) + ".")
    if control:
        alone = "; ".join(f"{pack} {g:+.1f}" for pack, g in sorted(control.items(), key=lambda c: c[1]) if g < -2)
        added = sorted((g - control[pack], protocol, pack, g) for g, protocol, pack in own if g < control[pack] - 0.5)
        print(f"- **What garbage adds** to a seed's own worst window: after one row of garbage instead of 2,500 it is below −2 as well on {alone}: the worst of "
              f"many windows of 300 noisy rows. Garbage makes it worse by more than 0.5 in {len(added)} of those {len(own)} cells: " +
              "; ".join(f"{pack} {protocol} {g:+.1f} ({control[pack]:+.1f} without)" for _, protocol, pack, g in added) + ".")
    told = {w[1:3]: [r["record"] for r in cells[w[1:3]]] for w in windows if all(r.get("record") for r in cells[w[1:3]])}
    loud = {key for key, records in told.items() if all(r["restarts"] or r["alarms"] for r in records)}
    kinds = collections.Counter(protocol.split(":")[2] for protocol, _ in loud)
    healthy = [w for w in own if w[1:] in told and all(r["standing"] == "healthy" for r in told[w[1:]])]
    silent = [w for w in own if w[1:] in told and w[1:] not in loud]
    print(f"- **What the record told** by the end of the stream: restarts or alarms under every seed in {len(loud)} of {len(told)} cells ("
          + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items())) + f" of {len(told) // 4} each; `still` is one scene, of which there is nothing to tell). "
          f"The standing is the guard's, who does not see garbage: it was `healthy` in {len(healthy)} of the {len(own)} cells in which a seed's own worst window is below −2 on the mean, "
          f"and in {len(silent)} of these neither restarts nor alarms told of anything"
          + (": " + "; ".join(f"{pack} {protocol}" for _, protocol, pack in silent) if silent else "") + ".")
    middle = worst_windows(cells, middle=True)
    if middle:
        below = [w for w in middle if w[0] < -2]
        print(f"- **Garbage in the middle** of the stream (`…:middle`, not counted above): the worst window behind it is more than 2 points below "
              f"zero-shot in {len(below)} of {len(middle)} cells" + (": " if below else "") + "; ".join(f"{pack} {protocol} {g:+.1f}" for g, protocol, pack, _ in below) + ".")


def tell_scenes(cells, packs):
    for protocol, words in [("iid", "shuffled"), ("runs", "class after class")]:
        rows = {pack: mean(r["record"]["rows"] / r["record"]["scenes"] for r in cells[protocol, pack])
                for pack in packs if all(r.get("record") for r in cells[protocol, pack])}
        if rows:
            most = sorted(rows.items(), key=lambda item: -item[1])[:3]
            print(f"- **Rows per scene**, {words} (`{protocol}`), where every row is a picture of its own: mean {mean(rows.values()):.3f}, most "
                  + ", ".join(f"{pack} {n:.2f}" for pack, n in most) + f"; eurosat10-logitspace {rows['eurosat10-logitspace']:.2f}.")


def tell_nights(cells, packs):
    visits, without = nights(cells, packs)
    bad = [(pack, state, gains) for pack, state, gains in visits if min(gains[1:]) < gains[0] - 0.5]
    shown = lambda gains: f"{gains[0]:+.1f}, then " + ", ".join(f"{g:+.1f}" for g in gains[1:])
    print(f"- **Night**: gain over zero-shot on the first visit to a state and on each return to it, mean over seeds, visits of at least half a length: every "
          f"return gains at least as much, less 0.5, in {len(visits) - len(bad)} of {len(visits)} (pack, state); not in " +
          ("; ".join(f"{pack} {state} ({shown(gains)})" for pack, state, gains in bad) or "none") +
          f". On the mean {mean(v[2][0] for v in visits):+.1f}, then {mean(g for v in visits for g in v[2][1:]):+.1f}; the first visit to `plain` is the start "
          f"of the stream, when nothing is learnt yet." + (" No return: " + ", ".join(f"{pack} {state}" for pack, state, _ in without) + "." if without else ""))


def tell_weak(folder):
    cells = {key: runs for key, runs in read(folder).items() if "+head" in key[1]}
    packs = sorted({pack for _, pack in cells})
    protocols = [protocol for protocol in PROTOCOLS if any((protocol, pack) in cells for pack in packs)]
    losses = [(figure, lost(cells, figure)) for figure in FIGURES]
    print("\n\n## Weaker heads: change against zero-shot\n\nHeads of weaker prompts that lie beside some packs (`--heads all`). They count in nothing above. " +
          "; ".join(f"{figure[1].split(',')[0]}: {len(found)} of {len(cells)} cells lose"
                    + (f", the worst {found[0][2]} {found[0][1]} {found[0][0]:+.{figure[5]}f}" if found else "") for figure, found in losses) +
          ".\n\nTop-1, points:\n\n" + table(cells, packs, FIGURES[0], protocols))


def main():
    cells = read(sys.argv[1])
    control = {pack: mean(100 * r["after_garbage"]["worst_gain"] for r in runs)
               for (protocol, pack), runs in cells.items() if protocol == CONTROL}
    everything = {key: runs for key, runs in cells.items() if key[0] != CONTROL}
    cells = {key: runs for key, runs in cells.items() if key[0] in PROTOCOLS}
    packs = sorted({pack for _, pack in cells})
    seeds = {len(runs) for runs in cells.values()}
    print("# Gain and harm\n")
    print("\n".join(__doc__.split("\n")[2:7]))
    print(f"""
The default, as it ships, against zero-shot on the same samples, predict first, then learn; every cell is the mean over {max(seeds)}
seeds. The settings were chosen on these packs: these are not left-out figures. ▼ marks a loss that counts: top-1 more than 0.5
points below zero-shot, ECE more than 1 point or NLL more than 0.02 nats above, and a paired bootstrap interval that leaves out 0
(under `shots` whole shots are redrawn). `–` is not applicable: no other pack that names the same encoder has strangers to offer (encoders are
told apart by their names). Protocols: [protocols.md](protocols.md).
""")
    reached(aims(cells, packs))
    print()
    for figure in FIGURES:
        found = lost(cells, figure)
        named = "; ".join(f"{pack} {protocol} {by:+.{figure[5]}f}" for by, protocol, pack in found)
        print(f"- **{figure[1]}**: {len(found)} of {len(cells)} cells lose ({100 * len(found) / len(cells):.1f} %): {named}.")
    tell_garbage(everything, control)
    found = shots(cells)
    bad = [s for s in found if s[0]]
    print(f"- **Shots**: top-1 at least zero-shot's − 0.5, ECE at most zero-shot's + 1.5 and at most half of its switches within a "
          f"shot in {len(found) - len(bad)} of {len(found)} cells; not in " +
          "; ".join(f"{pack} {protocol} ({top1:+.1f} top-1, {ece:+.1f} ECE, {s[0]:.1f} of {s[1]:.1f} switches)"
                    for _, protocol, pack, top1, ece, s in bad) + ".")
    tell_scenes(cells, packs)
    tell_nights(cells, packs)
    print("\n" + "\n\n".join(f"## {figure[1]}: change against zero-shot\n\n" + table(cells, packs, figure) for figure in FIGURES), end="")
    if len(sys.argv) > 2:
        tell_weak(sys.argv[2])
    else:
        print()


if __name__ == "__main__":
    main()
