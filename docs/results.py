"""Turns the runs of the big comparison into docs/results.md: the part between its two marks is written anew.

    ultta eval --data DATA --data WIDE --methods all --patience 120 --seeds 0-2 --out runs/results \\
        --protocols iid,sorted,dirichlet:0.1,partial:0.2,zipf,few:5:64,iid+shots:30
    ultta report runs/results --html runs/results.html --md docs/results-tables.md --latex runs/results.tex --figures docs/figures
    python3 docs/results.py runs/results docs/results.md

Runs that were made beside other work are not to be timed: `--timing RUNS` takes what is measured in time from other runs of the
same methods (on fewer packs), `--untimed` leaves it out. `--minutes N` tells how long the evaluation took by the clock. Needs Python's
standard library only.
"""

import collections
import json
import pathlib
import sys


def option(name):
    """The value of an option, taken out of the arguments; None without it."""
    if name not in sys.argv:
        return None
    at = sys.argv.index(name)
    if at + 1 == len(sys.argv):
        raise SystemExit(__doc__)
    value = sys.argv[at + 1]
    del sys.argv[at:at + 2]
    return value


UNTIMED, TIMING, MINUTES = "--untimed" in sys.argv, option("--timing"), option("--minutes")
TIMES = {}  # microseconds of a sample by method, where they come from other runs
BEGIN, END = "<!-- made by docs/results.py: begin -->", "<!-- made by docs/results.py: end -->"
# The packs of WIDE, of other encoders; the others are those of DATA.
WIDE = ("aid30", "eurosat10", "food10", "retinal8", "whurs19")
GROUPS = ["answered before the sample teaches", "the sample teaches first", "sees later samples",
          "told the stream's length, or given views or labels"]
# Why a method wins or comes last, from its mechanism: the protocols that the reason fits, and the reason. Elsewhere none is given.
TOGETHER = ["sorted", "dirichlet:0.1", "few:5:64"]
FEW = ["partial:0.2", "zipf"]
WINS = {
    "ul-tta": (TOGETHER + FEW, "its prior follows how classes come, and image evidence is dropped where it misleads"),
    "lame": (TOGETHER, "it pulls the neighbours among 64 samples together, and here they share their class"),
    "prior-only": (["partial:0.2"], "it trusts its counts at once, and most classes never come"),
    "stata": (FEW, "classes that a batch lacks are held near their texts"),
    "adapt-transductive": (["iid", "iid+shots:30"], "it has seen the whole stream before it answers"),
}
LAST = {
    "onzeta": (TOGETHER + FEW, "it holds classes to balance as it goes, and these are not balanced"),
    "lame": (["iid", "zipf"], "it pulls the neighbours among 64 shuffled samples together"),
    "prior-only": (TOGETHER, "it trusts its counts at once, and other classes come next"),
    "ecalp": (FEW, "the more images link to a text, the less it pulls: a hidden prior for balance"),
    "pta": (TOGETHER, "its reference rows lose their text after two samples, so classes that were seen outrank those to come"),
    "t3a": (TOGETHER, "class weights become means of images, so classes that were seen outrank those to come"),
    "oga": (["iid+shots:30"], "near-copies of a picture fill the slots of its class"),
}

# Packs that come near a published setting: what differs, and published top-1 at CLIP ViT-B/16. Not all were read in the papers: where each was found
# stands in crates/eval/src/suite/batteries.rs, in short in SOURCES.
PUBLISHED = [
    ("eurosat10-logitspace", "the same encoder and test pictures, but cosines with the ten texts instead of features: no image geometry, on which these methods live",
     {"tda": 58.00, "dmn": 57.37, "freetta": 62.93, "dota": 62.78, "ecalp": 55.95}),
    ("pets24", "24 of 37 breeds, ViT-B/32, pictures from other sources", {"tda": 88.63, "dmn": 91.88, "freetta": 90.11, "dota": 92.01, "ecalp": 92.04}),
    ("caltech62", "62 of 100 classes, ViT-B/32, pictures from other sources", {"tda": 94.24, "dmn": 95.09, "freetta": 94.63, "dota": 94.16, "ecalp": 94.24}),
    ("dtd47-exemplar", "the same test pictures, ViT-B/32, prototypes from labelled pictures instead of texts",
     {"tda": 47.40, "dmn": 54.61, "freetta": 46.96, "dota": 47.64, "ecalp": 54.67}),
    ("ucf101-exemplar", "the same test pictures, ViT-B/32, prototypes from labelled pictures instead of texts", {"dmn": 72.43, "dota": 72.54, "ecalp": 75.92}),
    ("imagenet6k", "6 of 50 pictures per class, ViT-B/32", {"tda": 69.5, "dmn": 72.24, "freetta": 70.2, "bca": 70.2, "ecalp": 70.18}),
]

SOURCES = """Published figures are from the authors where at hand (DMN's logs, PTA's abstract, OGA's README), otherwise from later papers'
comparison tables (DOTA: CGPS; ECALP: IOTA and, on ImageNet, TTABC; TDA's mean: PTA) or quoted by an audit (TDA, FreeTTA);
those of TDA, FreeTTA and BCA on ImageNet are from memory and not checked. Of FGVC-Aircraft, on which all of them report, no pack is at hand; for ADAPT no
table of accuracies was found."""

# Published gains in top-1 over zero-shot, where only means over sets or only ImageNet are known.
GAINS = [
    ("pta", "+3.7, ten cross-domain sets, ViT-B/16, TDA's templates"),
    ("tda", "+2.3, the same (PTA's comparison)"),
    ("dota", "+4.1 over PTA's zero-shot (65.6; its own is not known), settings chosen per set (CGPS's comparison)"),
    ("oga", "+3.2 at ViT-B/16, **+1.0 at ViT-B/32**, eleven sets, one template, 100 shuffles"),
    ("ecalp", "+3.5 on ImageNet, ViT-B/16, one prompt (TTABC's comparison)"),
]
# Packs with text heads of ViT-B/32, the nearest to those settings.
TEXTS = ["imagenet6k", "pets24", "caltech62"]


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else float("nan")


def because(reasons, method, protocol):
    """A clause with the reason, where one fits the protocol."""
    protocols, reason = reasons.get(method.name, ([], ""))
    return f"; {reason}" if protocol in protocols else ""


def sample_us(run):
    """Microseconds of a sample as reports have them: processor time where it is known, else the clock's."""
    timing = run["timing"]
    own = timing.get("cpu_us")
    return own if own is not None else 1e6 / max(timing["samples_per_second"], 1e-9)


def group(facts):
    if facts.get("labels") or facts.get("views") or facts.get("stream_length"):
        return 3
    if facts.get("later_samples") or facts.get("whole_stream"):
        return 2
    return 1 if facts.get("answers_after") else 0


def size(count):
    for unit, factor in [("MB", 1e6), ("kB", 1e3)]:
        if count >= factor:
            return f"{count / factor:.{1 if count < 10 * factor else 0}f} {unit}"
    return f"{count} B"


class Method:
    def __init__(self, name, runs):
        self.name, self.runs = name, runs
        self.group = max(group(run.get("facts", {})) for run in runs)
        streams = collections.defaultdict(list)
        for run in runs:
            streams[run["protocol"], run["dataset"]].append(run)
        self.streams = streams

    def change(self, key, protocol=None, factor=1, wide=None):
        """Mean over streams of the change against zero-shot on the same samples; `wide` tells which packs count, all where it is None."""
        cells = [mean(factor * (r[key] - r["zero_shot"][key]) for r in runs)
                 for (p, pack), runs in self.streams.items() if protocol in (None, p) and wide in (None, pack.startswith(WIDE))]
        return mean(cells)

    def worst_tenth(self):
        gains = sorted(100 * (r["top1"] - r["zero_shot"]["top1"]) for r in self.runs)
        return mean(gains[:max(1, -(-len(gains) // 10))])

    def losing(self):
        def loses(runs):
            gain = mean(100 * (r["top1"] - r["zero_shot"]["top1"]) for r in runs)
            high = mean((r["intervals"]["gain"][1] if isinstance(r["intervals"]["gain"], list)
                         else r["intervals"]["gain"]["high"]) for r in runs)
            return gain < -0.5 and high < 0
        return sum(loses(runs) for runs in self.streams.values())

    def micros(self):
        """Time of a sample; 0 where the runs are not to be timed."""
        if UNTIMED:
            return 0.0
        if TIMING:
            return TIMES[self.name]
        return mean(sample_us(r) for r in self.runs)

    def state(self):
        return max(r["state_bytes"] for r in self.runs)


def read(folder):
    runs, refused = [], []
    for path in sorted(pathlib.Path(folder).rglob("summary.json")):
        run = json.loads(path.read_text())
        run["timing"] = json.loads(path.with_name("timing.json").read_text())
        runs.append(run)
    there = {(r["protocol"], r["dataset"], r["method"]) for r in runs}
    for path in sorted(pathlib.Path(folder).rglob("refused.json")):
        one = json.loads(path.read_text())
        if (one["protocol"], one["dataset"], one["method"]) not in there:
            refused.append(one)
    return runs, refused


def ranked(methods, key):
    return sorted(methods, key=key, reverse=True)


def table(methods, protocols, streams):
    head = ["method", *protocols, "mean", "worst tenth", "streams that lose", "ECE", "NLL", "µs a sample", "state"]
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    best = {p: max(m.change("top1", p, 100) for m in methods if m.name != "zero-shot") for p in protocols}
    for number, title in enumerate(GROUPS):
        own = ranked([m for m in methods if m.group == number], lambda m: m.change("top1", None, 100))
        if own:
            out.append(f"| *{title}* |" + " |" * (len(head) - 1))
        for m in own:
            cells = []
            for p in protocols:
                gain = m.change("top1", p, 100)
                cells.append("–" if gain != gain else f"**{gain:+.1f}**" if gain == best[p] else f"{gain:+.1f}")
            name = m.name if len(m.streams) == streams else f"{m.name} ({len(m.streams)} of {streams} streams)"
            cells += [f"{m.change('top1', None, 100):+.2f}", f"{m.worst_tenth():+.1f}", f"{m.losing()} of {len(m.streams)}",
                      f"{m.change('ece', None, 100):+.1f}", f"{m.change('nll'):+.2f}", "–" if UNTIMED else f"{m.micros():.1f}", size(m.state())]
            out.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def of_packs(methods, wide):
    """Who is first on a group of packs, over all protocols and on shuffled streams; empty where there are none of it."""
    packs = {pack for m in methods for _, pack in m.streams if pack.startswith(WIDE) == wide}
    if not packs:
        return ""
    def first(key, protocol, factor, digits):
        order = sorted(methods, key=lambda m: m.change(key, protocol, factor, wide), reverse=key == "top1")
        told = [f"{m.name} ({m.change(key, protocol, factor, wide):+.{digits}f})" for m in order]
        place = next((i for i, m in enumerate(order) if m.name == "ul-tta"), 0)
        return f"{told[0]}, then {told[1]}" + (f"; {told[place]} is number {place + 1}" if place > 1 else "")
    return (f"On the {len(packs)} packs of {'WIDE' if wide else 'DATA'}: most top-1 over all protocols {first('top1', None, 100, 2)}; least NLL {first('nll', None, 1, 3)}; "
            f"most top-1 on shuffled streams {first('top1', 'iid', 100, 2)}.")


def sentences(methods, protocols, streams):
    whole = [m for m in methods if len(m.streams) == streams and m.name != "zero-shot"]
    gain = lambda m: m.change("top1", None, 100)
    order = ranked(whole, gain)
    out = []
    first, second = order[0], order[1]
    out.append(f"Over all streams **{first.name}** gains most, {gain(first):+.1f} points of top-1, before {second.name} ({gain(second):+.1f}); "
               f"it loses on {first.losing()} of {streams} streams, and its worst tenth of runs is at {first.worst_tenth():+.1f}.")
    out += [line for line in (of_packs(whole, wide) for wide in (False, True)) if line]
    for p in protocols:
        own = ranked([m for m in methods if m.name != "zero-shot" and m.change("top1", p, 100) == m.change("top1", p, 100)],
                     lambda m: m.change("top1", p, 100))
        value = lambda m: m.change("top1", p, 100)
        text = f"**{p}**: {own[0].name} wins ({value(own[0]):+.1f}{because(WINS, own[0], p)}), then {own[1].name} ({value(own[1]):+.1f})"
        place = next((i for i, m in enumerate(own) if m.name == "ul-tta"), None)
        if place is not None and place > 1:
            text += f"; ul-tta is number {place + 1} ({value(own[place]):+.1f})"
        last = own[-1]
        text += f"; last is {last.name} ({value(last):+.1f}{because(LAST, last, p)})."
        out.append(text)
    safe = [m for m in whole if m.losing() == 0]
    calm = min(whole, key=lambda m: m.losing())
    out.append(("No stream loses under " + ", ".join(m.name for m in safe) + ". " if safe else
                f"No method is without loss; the fewest streams lose under {calm.name}, {calm.losing()} of {streams}. ")
               + "Calibration: NLL falls under " + (", ".join(f"{m.name} ({m.change('nll'):+.2f})" for m in ranked(whole, lambda m: -m.change("nll"))
                                                             if m.change("nll") < -0.005) or "none") + "; under the others it does not.")
    if UNTIMED:
        return "\n".join(f"{i}. {text}" for i, text in enumerate(out, 1))
    front, reached = [], float("-inf")
    for m in sorted(whole, key=lambda m: m.micros()):
        if gain(m) > max(reached, 0):
            reached = gain(m)
            front.append(f"{m.name} ({m.micros():.0f} µs, {size(m.state())}: {gain(m):+.1f})")
    out.append("Cost against gain, those that nothing cheaper outdoes: " + ", ".join(front) + ". A forward pass of ViT-B/16 takes tens of "
               "milliseconds on the same cores, so time decides between methods only where memory or streams are long.")
    return "\n".join(f"{i}. {text}" for i, text in enumerate(out, 1))


def beside_published(runs):
    """Shuffled streams beside published figures, with what differs."""
    out = ["| pack | zero-shot here | ours / published at ViT-B/16 | what differs |", "|---|---|---|---|"]
    for pack, differs, figures in PUBLISHED:
        own = [r for r in runs if r["protocol"] == "iid" and r["dataset"].split("/")[0] == pack]
        if not own:
            continue
        cells = []
        for method, published in figures.items():
            ours = [100 * r["top1"] for r in own if r["method"] == method]
            if ours:
                cells.append(f"{method} {mean(ours):.1f} / {published:.1f}")
        zero = mean(100 * r["zero_shot"]["top1"] for r in own)
        out.append(f"| {pack} | {zero:.1f} | {', '.join(cells)} | {differs} |")
    return "\n".join(out)


def beside_gains(runs):
    """Published gains beside ours on shuffled packs with text heads."""
    out = ["| method | published gain | " + " | ".join(TEXTS) + " |", "|---|---|" + "---|" * len(TEXTS)]
    for method, published in GAINS:
        cells = []
        for pack in TEXTS:
            own = [100 * (r["top1"] - r["zero_shot"]["top1"]) for r in runs
                   if (r["protocol"], r["dataset"].split("/")[0], r["method"]) == ("iid", pack, method)]
            cells.append(f"{mean(own):+.1f}" if own else "–")
        out.append(f"| {method} | {published} | {' | '.join(cells)} |")
    return "\n".join(out)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--untimed"]
    if len(arguments) != 2:
        raise SystemExit(__doc__)
    runs, refused = read(arguments[0])
    timed = []
    if TIMING:
        timed, _ = read(TIMING)
        for run in timed:
            TIMES.setdefault(run["method"], []).append(sample_us(run))
        TIMES.update({name: mean(times) for name, times in TIMES.items()})
    by_name = collections.defaultdict(list)
    for run in runs:
        by_name[run["method"]].append(run)
    methods = [Method(name, own) for name, own in by_name.items()]
    order = ["iid", "sorted", "dirichlet:0.1", "partial:0.2", "zipf", "few:5:64", "iid+shots:30"]
    found = {r["protocol"] for r in runs}
    protocols = [p for p in order if p in found] + sorted(found - set(order))
    datasets, seeds = {r["dataset"] for r in runs}, {r["seed"] for r in runs}
    streams = len({(r["protocol"], r["dataset"]) for r in runs})
    seconds = sum(r["timing"]["seconds"] for r in runs)
    if UNTIMED:
        about_time = "; not timed, since they ran beside other work"
    elif TIMING:
        where = ", ".join(sorted({f"{r['dataset']} ({r['protocol']})" for r in timed}))
        about_time = f"; times are of runs alone on {where}, their mean"
    else:
        about_time = f"; {seconds / 60:.0f} minutes inside the methods"
    took = f" in {MINUTES} minutes by the clock" if MINUTES else ""
    text = f"""
{len(runs):,} runs{took}: {len(methods)} methods on {len(datasets)} packs under {len(protocols)} protocols, {len(seeds)} seed(s){about_time}. Every method has one configuration everywhere, its defaults. Points of top-1 over zero-shot on the same
samples, mean over packs; ECE (points) and NLL (nats) are changes, below 0 is better{'' if UNTIMED else '; µs are processor time'}. Bold: the best of a column. Every table per
pack is in [results-tables.md](results-tables.md).

{table(methods, protocols, streams)}

![Mean gain over all streams](figures/gain.svg){'' if UNTIMED else ' ![Cost and gain](figures/cost.svg)'}

### Who wins where, and why

{sentences(methods, protocols, streams)}

### Beside published figures

No pack at hand is a published setting as it is; these come near, shuffled streams, our one configuration per method. {SOURCES}

{beside_published(runs)}

Gains over zero-shot, for methods of which means are published; ours on the shuffled packs that have text heads (ViT-B/32, fewer pictures, one
configuration, the packs' own templates):

{beside_gains(runs)}
"""
    lacking = collections.defaultdict(set)
    for one in refused:
        lacking[one["method"], one["why"], one["reason"] if one["why"] in ("views", "pictures") else ""].add(one["dataset"])
    if lacking:
        text += "\nWithout a run: " + "; ".join(
            f"{method} ({why}{': ' + reason if reason else ''}) on {len(packs)} pack(s)" for (method, why, reason), packs in sorted(lacking.items())) + ".\n"
    page = pathlib.Path(arguments[1])
    old = page.read_text()
    if BEGIN not in old or END not in old:
        raise SystemExit(f"{page}: expected the marks {BEGIN} and {END}")
    before, rest = old.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    page.write_text(before + BEGIN + "\n" + text + "\n" + END + after)


if __name__ == "__main__":
    main()
