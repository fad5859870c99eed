#!/usr/bin/env python3
"""Where the default gains and where it loses, as the tables of docs/harm.md.

    ultta eval --data DATA --data WIDE --methods ul-tta --protocols harm --seeds 0-4 --out runs/harm
    ultta eval --data DATA --data WIDE --methods ul-tta --seeds 0-4 --out runs/harm --protocols iid+garbage:1:noise,iid+garbage:2500:noise:middle,iid+garbage:2500:cone:middle,iid+garbage:2500:flip:middle
    ultta eval --data DATA/imagenet6k --data WIDE/whurs19 --heads all --methods ul-tta --protocols harm --seeds 0-4 --out runs/weak
    ultta eval --data DATA/caltech62 --data DATA/dtd47-exemplar --data WIDE/whurs19 --methods ul-tta --protocols iid+night:500+cycle:3000 --seeds 0-4 --out runs/harm
    python3 docs/harm.py runs/harm runs/weak > docs/harm.md

The second command has the control of the first, one row of garbage instead of 2,500, and garbage in the middle of the stream; the third the
weaker heads that lie beside some packs; the fourth longer nights of the packs that are too short for a return. `ultta report runs/harm --html harm.html` shows the same
matrix in colour. Needs Python's standard library only.
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
# of packs that are too short for a return
LONG_NIGHT = NIGHT + "+cycle:3000"


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


def nights(cells, packs, protocol=NIGHT):
    """By pack and state: gain on the first visit and on each return, means over seeds. A visit that the stream's end cuts short counts from half its length on."""
    found, without = [], []
    for pack in packs:
        visits = collections.defaultdict(lambda: collections.defaultdict(list))
        for run in cells.get((protocol, pack), []):
            count = collections.Counter()
            for visit in run["course"]["domains"]:
                if visit["n"] >= 250:
                    visits[visit["name"]][count[visit["name"]]].append(100 * (visit["top1"] - visit["zero_shot_top1"]))
                count[visit["name"]] += 1
        for state, by_number in sorted(visits.items()):
            gains = [mean(by_number[number]) for number in sorted(by_number)]
            (found if len(gains) > 1 else without).append((pack, state, gains))
    return found, without


def bad_returns(visits):
    """Visits whose least gain on a return is more than 0.5 below the gain on the first visit."""
    return [(pack, state, gains) for pack, state, gains in visits if min(gains[1:]) < gains[0] - 0.5]


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
    chance = sorted((by, pack, protocol) for (protocol, pack), runs in cells.items()
                    for by, loses in [loss(runs, FIGURES[0])] if by < -2 and not loses)
    within = "".join(f"; {pack} {protocol} has {by:+.1f}, but its interval holds 0" for by, pack, protocol in chance)
    rows = [("cells that lose more than 0.5 points of top-1: at most 3 %", f"{share(top1):.1f} %", share(top1) <= 3),
            ("none loses more than 2 points", named(top1, 1) + within, not top1 or top1[0][0] >= -2),
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
    good = len(visits) - len(bad_returns(visits))
    rows.append(("night: each return gains at least as much as the first visit, less 0.5",
                 f"{good} of {len(visits)} (pack, state)", good == len(visits)))
    return rows


def tell_losses(cells):
    """The losing cells of every figure by pack, the pack with the worst cell first."""
    for figure in FIGURES:
        found = lost(cells, figure)
        by_pack = collections.defaultdict(list)
        for by, protocol, pack in found:
            by_pack[pack].append(f"{protocol} {by:+.{figure[5]}f}")
        print(f"- **{figure[1]}**: {len(found)} of {len(cells)} cells lose ({100 * len(found) / len(cells):.1f} %)" + (":" if found else "."))
        for pack, named in by_pack.items():
            print(f"  - {pack}: " + ", ".join(named))


def named(cells):
    """Cells with what is told of each, in one line."""
    return "; ".join(f"{pack} {protocol} {told}" for pack, protocol, told in cells)


def tell_garbage(cells, control):
    windows = worst_windows(cells)
    below = [(pack, protocol, f"{gain:+.1f}") for gain, protocol, pack, _ in windows if gain < -2]
    own = sorted((own, protocol, pack) for _, protocol, pack, own in windows if own < -2)
    print("\nWindows of 300 clean samples behind the garbage begin every 30 samples. Cells with one that is more than 2 points below zero-shot:\n")
    print(f"- **on the mean over seeds** {len(below)} of {len(windows)}" + (": " if below else "") + named(below) + ";")
    print(f"- **by each seed's own worst window**, which chance makes worse, on the mean {len(own)}: "
          + named((pack, protocol, f"{gain:+.1f}") for gain, protocol, pack in own) + ".")
    if control:
        alone = "; ".join(f"{pack} {gain:+.1f}" for pack, gain in sorted(control.items(), key=lambda c: c[1]) if gain < -2)
        added = sorted((gain - control[pack], protocol, pack, gain) for gain, protocol, pack in own if gain < control[pack] - 0.5)
        print(f"- **Without garbage** (one row of it instead of 2,500) a seed's own worst window is below −2 as well on {alone}: the worst of "
              f"many windows of 300 noisy rows. Garbage makes it worse by more than 0.5 in {len(added)} of those {len(own)} cells: "
              + named((pack, protocol, f"{gain:+.1f} ({control[pack]:+.1f} without)") for _, protocol, pack, gain in added) + ".")
    middle = worst_windows(cells, middle=True)
    if middle:
        below = [(pack, protocol, f"{gain:+.1f}") for gain, protocol, pack, _ in middle if gain < -2]
        print(f"- **Garbage in the middle** of the stream (`…:middle`, counted in no aim): {len(below)} of {len(middle)} cells on the mean over seeds"
              + (": " if below else "") + named(below) + ".")
    told = {w[1:3]: [r["record"] for r in cells[w[1:3]]] for w in windows if all(r.get("record") for r in cells[w[1:3]])}
    loud = {key for key, records in told.items() if all(r["restarts"] or r["alarms"] for r in records)}
    kinds = collections.Counter(protocol.split(":")[2] for protocol, _ in loud)
    healthy = [w for w in own if w[1:] in told and all(r["standing"] == "healthy" for r in told[w[1:]])]
    silent = [w for w in own if w[1:] in told and w[1:] not in loud]
    noticed = {key: [r["garbage"] for r in records] for key, records in told.items() if all("garbage" in r for r in records)}
    noticed = {key: counts for key, counts in noticed.items() if "still" not in key[0]}
    # Every other row of `flip` is a picture.
    rows = {key: int(key[0].split(":")[1]) / (2 if "flip" in key[0] else 1) for key in noticed}
    spotted = collections.Counter(key[0].split(":")[2] for key, counts in noticed.items() if min(counts) >= 0.9 * rows[key])
    of_kind = collections.Counter(protocol.split(":")[2] for protocol, _ in noticed)
    print(f"\n**What the record told** by the end of the stream: restarts or alarms under every seed in {len(loud)} of {len(told)} cells ("
          + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items())) + f" of {len(told) // 4} each). "
          + ("Its `garbage` counts nine tenths of the garbage or more, under every seed, in these cells: "
             + ", ".join(f"{kind} {spotted[kind]} of {n}" for kind, n in sorted(of_kind.items()))
             + " (every other row of `flip` is a picture; `still` is one scene). " if noticed else "")
          + f"The standing is the guard's, and the guard leaves garbage out. It was `healthy` in {len(healthy)} of the {len(own)} cells in which a seed's own worst window is "
          f"below −2 on the mean, and in {len(silent)} of these neither restarts nor alarms told of anything"
          + (": " + "; ".join(f"{pack} {protocol}" for _, protocol, pack in silent) if silent else "") + ".")


def tell_scenes(cells, packs):
    print("Here every row is a picture of its own, so that more than one row per scene is too many.\n")
    print("| order | mean of the packs | most |\n|---|---|---|")
    for protocol, words in [("iid", "shuffled"), ("runs", "class after class")]:
        rows = {pack: mean(r["record"]["rows"] / r["record"]["scenes"] for r in cells[protocol, pack])
                for pack in packs if all(r.get("record") for r in cells[protocol, pack])}
        if rows:
            most = sorted(rows.items(), key=lambda item: -item[1])[:3]
            print(f"| {words} (`{protocol}`) | {mean(rows.values()):.3f} | " + ", ".join(f"{pack} {n:.2f}" for pack, n in most) + " |")


def tell_shots(cells):
    found = shots(cells)
    bad = [s for s in found if s[0]]
    print(f"Top-1 at least zero-shot's − 0.5, ECE at most zero-shot's + 1.5, and at most half of its switches within a shot, in {len(found) - len(bad)} of "
          f"{len(found)} cells. Not in\n\n| pack | protocol | top-1 | ECE | switches within a shot per 100, of zero-shot's |\n|---|---|---|---|---|")
    for _, protocol, pack, top1, ece, switches in bad:
        print(f"| {pack} | {protocol} | {top1:+.1f} | {ece:+.1f} | {switches[0]:.1f} of {switches[1]:.1f} |")


def tell_nights(cells, packs):
    visits, without = nights(cells, packs)
    shown = lambda gains: f"{gains[0]:+.1f}, then " + ", ".join(f"{g:+.1f}" for g in gains[1:])
    counted = lambda visits: (f"{len(visits) - len(bad_returns(visits))} of {len(visits)} (pack, state)" +
                              "".join(f"; not {pack} {state} ({shown(gains)})" for pack, state, gains in bad_returns(visits)))
    print(f"Gain over zero-shot on the first visit to a state and on each return to it, means over seeds, visits of at least half a length. Every return gains at "
          f"least as much as the first visit, less 0.5, in {counted(visits)}. On the mean {mean(v[2][0] for v in visits):+.1f}, then "
          f"{mean(g for v in visits for g in v[2][1:]):+.1f}; the first visit to `plain` is the start of the stream, when nothing is learnt yet.")
    if without:
        print("\nNo return: " + ", ".join(f"{pack} {state}" for pack, state, _ in without) + ".", end="")
    longer, _ = nights(cells, packs, LONG_NIGHT)
    if longer:
        print(f" With streams of 3,000 samples (`{LONG_NIGHT}`, counted in no aim) these packs return, too: {counted(longer)}.", end="")
    print()


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
    print("## Cells that lose\n\nBy pack, the pack with the worst cell first.\n")
    tell_losses(cells)
    print("\n## After garbage")
    tell_garbage(everything, control)
    print("\n## Shots\n")
    tell_shots(cells)
    print("\n## Rows per scene\n")
    tell_scenes(cells, packs)
    print("\n## Night\n")
    tell_nights(everything, packs)
    print("\n" + "\n\n".join(f"## {figure[1]}: change against zero-shot\n\n" + table(cells, packs, figure) for figure in FIGURES), end="")
    if len(sys.argv) > 2:
        tell_weak(sys.argv[2])
    else:
        print()


if __name__ == "__main__":
    main()
