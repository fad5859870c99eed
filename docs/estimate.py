"""Estimated accuracy beside the true one, every dataset left out in turn; prints the constants of crates/core/src/estimate/.

    python3 docs/estimate.py --ultta target/release/ultta --data ../shared/data --data ../shared/wide --out runs-estimate

Runs `ultta eval` where run folders are missing, then fits: a minute on two cores, seconds when the runs are there.
"""

import argparse
import json
import math
import statistics
import subprocess
from pathlib import Path

PROTOCOLS = ["iid", "sorted", "partial:0.2", "dirichlet:0.1", "iid+shots:30", "iid+weak"]
CENTRES = [(0.5, 0.25), (0.5, 0.25), (0.4, 0.3)]
CAP = 0.45
SMALL = {"eurosat10-logitspace"}  # packs whose rows have too few numbers for halves (MIN_DIM)
HOLD = 1.0  # ridge on every term, in cells
ROBUST = 0.06  # errors beyond this count linearly
NINE_OF_TEN = 1.645


def run(args, protocols, seeds):
    for data in args.data:
        command = [args.ultta, "eval", "--data", data, "--methods", "ul-tta", "--protocols", ",".join(protocols)]
        command += ["--seeds", seeds, "--out", args.out, "--json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def cells(args, protocols, seeds):
    found = []
    for path in sorted(Path(args.out).glob("**/summary.json")):
        run = json.loads(path.read_text())
        if run["protocol"] in protocols and str(run["seed"]) in seeds.split(","):
            run["family"] = run["dataset"].split("/")[0].split("+")[0]
            found.append(run)
    return found


def terms(run):
    _, _, overlap, agreement, early = run["estimated"]["ingredients"][:5]
    o, a, e = [(v - c) / s for v, (c, s) in zip((overlap, agreement, early), CENTRES)]
    return [1.0, o, a, e, o * o, o * a, a * a]


def capped(run):
    """The mean probability of the frozen answers, no higher than the halves allow, and that limit."""
    _, frozen, overlap, agreement = run["estimated"]["ingredients"][:4]
    most = min(max(CAP + agreement + overlap, 0.02), 0.995)
    return min(frozen, most), most


def solve(matrix, right):
    n = len(right)
    rows = [list(matrix[i]) + [right[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, n):
            factor = rows[r][i] / rows[i][i]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i])]
    out = [0.0] * n
    for i in reversed(range(n)):
        out[i] = (rows[i][n] - sum(rows[i][j] * out[j] for j in range(i + 1, n))) / rows[i][i]
    return out


def fit(runs):
    """The correction: ridge regression of (true zero-shot accuracy − mean probability), robust to single cells."""
    runs = [r for r in runs if r["family"] not in SMALL]
    X = [terms(r) for r in runs]
    y = [r["zero_shot"]["top1"] - capped(r)[0] for r in runs]
    weights = [1.0] * len(runs)
    for _ in range(8):
        n = len(X[0])
        matrix = [[sum(w * x[i] * x[j] for w, x in zip(weights, X)) for j in range(n)] for i in range(n)]
        for i in range(n):
            matrix[i][i] += HOLD if i else 0.1
        right = [sum(w * x[i] * t for w, x, t in zip(weights, X, y)) for i in range(n)]
        b = solve(matrix, right)
        errors = [abs(sum(u * v for u, v in zip(b, x)) - t) for x, t in zip(X, y)]
        weights = [1 / max(e / ROBUST, 1) for e in errors]
    return b


def odds(p):
    p = min(max(p, 0.005), 0.995)
    return math.log(p / (1 - p))


def estimate(b, run):
    """Adapted and frozen, as the library has it."""
    adapted, frozen = run["estimated"]["ingredients"][:2]
    corrected, most = capped(run)
    if run["family"] not in SMALL:
        corrected += sum(u * v for u, v in zip(b, terms(run)))
    corrected = min(max(corrected, 0.02), most)
    return [1 / (1 + math.exp(-(odds(corrected) + odds(adapted) - odds(frozen)))), corrected]


def truth(run):
    return [run["top1"], run["zero_shot"]["top1"]]


def sampling(run, side):
    return run["estimated"]["ingredients"][5 + side]


def systematic(runs, b, side):
    """The deviation at which nine of ten intervals hold the truth."""
    errors = [(estimate(b, r)[side] - truth(r)[side], sampling(r, side)) for r in runs]
    grid = [i / 400 for i in range(1, 200)]
    held = lambda s: statistics.mean(abs(e) <= NINE_OF_TEN * math.sqrt(v + s * s) for e, v in errors)
    return next((s for s in grid if held(s) >= 0.9), grid[-1])


def two_sizes(errors):
    """How often the estimate without labels is off by the usual, and its two deviations: a mixture of two normal
    distributions around 0, of errors beside their sampling variances."""
    usual, small, large = 0.6, 0.03, 0.12
    for _ in range(100):
        density = lambda s, v, e: math.exp(-e * e / 2 / (s * s + v)) / math.sqrt(s * s + v)
        of_usual = []
        for e, v in errors:
            a, b = usual * density(small, v, e), (1 - usual) * density(large, v, e)
            of_usual.append(a / (a + b))
        beyond = [max(e * e - v, 0) for e, v in errors]
        n = sum(of_usual)
        small = max(math.sqrt(sum(w * x for w, x in zip(of_usual, beyond)) / n), 0.01)
        large = max(math.sqrt(sum((1 - w) * x for w, x in zip(of_usual, beyond)) / (len(errors) - n)), 0.02)
        usual = (n + 1) / (len(errors) + 2)
    return usual, small, large


def sizes(runs, side):
    """The two sizes of errors on datasets that the correction was not fitted on."""
    errors = []
    for family in sorted({r["family"] for r in runs}):
        b = fit([r for r in runs if r["family"] != family])
        own = [r for r in runs if r["family"] == family]
        errors += [(estimate(b, r)[side] - truth(r)[side], sampling(r, side)) for r in own]
    return two_sizes(errors)


def joined(free, variance, systematic, errors, told):
    """As the library has it: without labels and with them, each with its variance."""
    if told[1] == 0:
        return free, variance + systematic**2
    usual, small, large = errors
    parts = []
    for share, deviation in ((usual, small), (1 - usual, large)):
        own = variance + deviation**2
        both = own + told[1]
        weight = share * math.exp(-((told[0] - free) ** 2) / 2 / both) / math.sqrt(both) + 1e-12
        parts.append((weight, (told[1] * free + own * told[0]) / both, own * told[1] / both))
    total = sum(w for w, _, _ in parts)
    mean = sum(w * m for w, m, _ in parts) / total
    return mean, sum(w * (v + (m - mean) ** 2) for w, m, v in parts) / total


def left_out(runs, fitted):
    """Per cell and side: estimate and variance by constants that no pack of its dataset has entered."""
    out = []
    for r in runs:
        b, deviations, errors = fitted[r["family"]]
        free = estimate(b, r)
        sides = []
        for side in range(2):
            told = r["estimated"]["ingredients"][7 + 2 * side : 9 + 2 * side]
            sides.append(joined(free[side], sampling(r, side), deviations[side], errors[side], told))
        out.append(sides)
    return out


def line(name, runs, estimates, side):
    errors = [abs(e[side][0] - truth(r)[side]) for r, e in zip(runs, estimates)]
    held = [x <= NINE_OF_TEN * math.sqrt(e[side][1]) for x, e in zip(errors, estimates)]
    reach = [2 * NINE_OF_TEN * math.sqrt(e[side][1]) for e in estimates]
    figures = [statistics.median(errors), statistics.mean(errors), statistics.mean(held), statistics.mean(reach)]
    print(f"| {name} | {len(runs)} | " + " | ".join(f"{100 * f:.1f}" for f in figures) + " |")
    return errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ultta", default="target/release/ultta")
    parser.add_argument("--data", action="append", required=True)
    parser.add_argument("--out", default="runs-estimate")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--labels", action="store_true", help="also with 2 %% labels and with 500")
    parser.add_argument("--label-seeds", default="0,1,2", help="of the runs with 2 %% labels")
    args = parser.parse_args()
    run(args, PROTOCOLS, args.seeds)
    runs = cells(args, PROTOCOLS, args.seeds)
    families = sorted({r["family"] for r in runs})
    fitted = {}
    for family in families:
        others = [r for r in runs if r["family"] != family]
        b = fit(others)
        fitted[family] = (b, [systematic(others, b, side) for side in range(2)], [sizes(others, side) for side in range(2)])
    b = fit(runs)
    spread = [systematic(runs, b, side) for side in range(2)]
    print("CORRECTION =", [round(v, 4) for v in b], "SYSTEMATIC =", [round(s, 3) for s in spread])
    print("ERRORS =", [tuple(round(v, 3) for v in sizes(runs, side)) for side in range(2)])
    print("\n| estimate | cells | median error | mean error | intervals that hold | width |\n|---|---|---|---|---|---|")
    free = left_out(runs, fitted)
    plain = [[(r["estimated"]["ingredients"][s], 1e-12) for s in range(2)] for r in runs]
    bins = lambda r: [(b["prob"], b["n"]) for b in r["zero_shot_reliability"]]
    confidence = [[(sum(p for p, _ in bins(r)) / sum(n for _, n in bins(r)), 1e-12)] * 2 for r in runs]
    errors = line("adapted, left out", runs, free, 0)
    line("zero-shot, left out", runs, free, 1)
    line("mean emitted probability, for the adapted", runs, plain, 0)
    line("zero-shot's mean confidence, for zero-shot", runs, confidence, 1)
    print("\nBy protocol, mean error of the adapted estimate:", end=" ")
    for p in PROTOCOLS:
        print(p, f"{100 * statistics.mean(e for e, r in zip(errors, runs) if r['protocol'] == p):.1f};", end=" ")
    print("\nThe worst:", end=" ")
    for e, r in sorted(zip(errors, runs), key=lambda pair: -pair[0])[:6]:
        print(f"{r['dataset']} {r['protocol']} {100 * e:.0f};", end=" ")
    print()
    if args.labels:
        with_labels(args, runs, fitted)


def grouped(runs, with_them, alone):
    """Mean errors with labels and without, by protocol and by dataset: where labels make the estimate worse."""
    for key in ("protocol", "family"):
        groups = {}
        for r, a, b in zip(runs, with_them, alone):
            groups.setdefault(r[key].split("+labels")[0], []).append((a, b))
        means = {k: [100 * statistics.mean(e[i] for e in v) for i in range(2)] for k, v in groups.items()}
        worse = {k: f"{a:.1f} for {b:.1f}" for k, (a, b) in means.items() if a > b}
        print(f"  (by {key}: worse with labels in {len(worse)} of {len(means)}: {worse})")
    more = [100 * (a - b) for a, b in zip(with_them, alone) if a > b]
    print(f"  (by cell: worse with labels in {len(more)} of {len(runs)}, by {statistics.median(more or [0]):.1f} points in the median, {max(more or [0]):.1f} at most)")


def with_labels(args, runs, fitted):
    print("\n| with labels | cells | median error | mean error | intervals that hold | width |\n|---|---|---|---|---|---|")
    share = [f"{p}+labels:0.02:100" for p in PROTOCOLS]
    run(args, share, args.label_seeds)
    told = cells(args, share, args.label_seeds)
    estimates = left_out(told, fitted)
    without = [[(v, 1.0) for v in estimate(fitted[r["family"]][0], r)] for r in told]
    for side, name in enumerate(("adapted", "zero-shot")):
        with_them = line(f"{name}, 2 % labelled", told, estimates, side)
        alone = line(f"{name}, the same runs without using the labels", told, without, side)
        grouped(told, with_them, alone)
    # 500 labels: the share depends on the stream's length, so that every pack has protocols of its own.
    lengths = {(r["dataset"], r["protocol"]): r["n"] for r in runs}
    wanted = set()
    for (dataset, protocol), n in lengths.items():
        wanted.add((dataset, protocol, f"{protocol}+labels:{min(1.0, 500 / n):.4f}:100"))
    by_name = {}
    for data in args.data:
        for head in Path(data).glob("*/*/head.safetensors"):
            by_name[str(head.parent.relative_to(data))] = head.parent
            by_name.setdefault(head.parent.parent.name, head.parent)
    for dataset in sorted({d for d, _, _ in wanted}):
        pack = by_name[dataset]
        command = [args.ultta, "eval", "--features", pack / "features.safetensors", "--head", pack / "head.safetensors"]
        command += ["--methods", "ul-tta", "--protocols", ",".join(sorted(p for d, _, p in wanted if d == dataset))]
        command += ["--out", f"{args.out}/500/{dataset.replace('/', '~')}", "--seeds", args.seeds, "--json"]
        subprocess.run([str(c) for c in command], check=True, stdout=subprocess.DEVNULL)
    told = []
    for dataset in sorted({d for d, _, _ in wanted}):
        for path in sorted(Path(f"{args.out}/500/{dataset.replace('/', '~')}").glob("**/summary.json")):
            r = json.loads(path.read_text())
            r["family"] = dataset.split("/")[0].split("+")[0]
            told.append(r)
    estimates = left_out(told, fitted)
    for side, name in enumerate(("adapted", "zero-shot")):
        line(f"{name}, 500 labels", told, estimates, side)


main()
