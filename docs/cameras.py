#!/usr/bin/env python3
"""What scenes do on real cameras: switches and confidence, zero-shot and adapted, as a table and a picture.

    cargo build --release
    python3 docs/cameras.py STREAMS > docs/cameras.md

STREAMS is a folder with videos as features in order (`cctv-*.safetensors`) and heads of the same encoder
(`head-*.safetensors`); no labels are needed. Writes docs/cameras.svg, too. Needs Python's standard library only.
"""

import collections
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ULTTA = ROOT / "target/release/ultta"
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"]
OTHERS = "#999999"
PICTURE_HEAD, WIDTH, LEFT = "voc20", 960, 110


def answers(video, head):
    """The rows of `ultta run` on a video."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as out:
        command = [ULTTA, "run", "--features", video, "--head", head, "--out", out.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return [json.loads(line) for line in open(out.name)]


def figures(labels, probs):
    switches = sum(a != b for a, b in zip(labels, labels[1:]))
    return 100 * switches / max(len(labels) - 1, 1), sum(probs) / len(probs)


def colours(*answers):
    """The most frequent labels of a video have a colour each."""
    counts = collections.Counter(label for labels in answers for label in labels)
    return {label: colour for (label, _), colour in zip(counts.most_common(), COLOURS)}


def strip(labels, y, scale, colour_of):
    """A bar that shows the answer of every frame by its colour."""
    parts, start = [], 0
    for i in range(1, len(labels) + 1):
        if i == len(labels) or labels[i] != labels[start]:
            x, width = LEFT + start * scale, (i - start) * scale
            colour = colour_of.get(labels[start], OTHERS)
            parts.append(f'<rect x="{x:.2f}" y="{y}" width="{max(width, 0.3):.2f}" height="13" fill="{colour}"/>')
            start = i
    return "".join(parts)


def curve(probs, y, height, scale, colour, dash):
    """Mean confidence in 300 stretches of the video."""
    step = max(len(probs) // 300, 1)
    points = []
    for i in range(0, len(probs), step):
        part = probs[i : i + step]
        points.append(f"{LEFT + (i + len(part) / 2) * scale:.1f},{y + height * (1 - sum(part) / len(part)):.1f}")
    return f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.6" {dash}/>'


def picture(videos):
    block, height = 118, 46
    body = []
    for i, (name, rows) in enumerate(videos):
        top, scale = 34 + i * block, (WIDTH - LEFT - 20) / len(rows)
        frozen = [r["zero_shot"]["label"] for r in rows], [r["zero_shot"]["prob"] for r in rows]
        adapted = [r["label"] for r in rows], [r["prob"] for r in rows]
        colour_of = colours(frozen[0], adapted[0])
        text = lambda y, words: f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{words}</text>'
        body += [f'<text x="8" y="{top - 4}" font-weight="bold">{name}: {len(rows):,} frames</text>',
                 text(top + 13, "zero-shot"), strip(frozen[0], top + 2, scale, colour_of),
                 text(top + 29, "adapted"), strip(adapted[0], top + 18, scale, colour_of),
                 text(top + 40, "1"), text(top + 40 + height, "0"), text(top + 44 + height // 2, "confidence"),
                 f'<rect x="{LEFT}" y="{top + 36}" width="{WIDTH - LEFT - 20}" height="{height}" fill="none" stroke="#ccc"/>',
                 curve(frozen[1], top + 36, height, scale, "#777777", 'stroke-dasharray="4 3"'),
                 curve(adapted[1], top + 36, height, scale, "#0072B2", "")]
    legend = (f'<text x="{LEFT}" y="14">A colour is an answer, one of the seven most frequent of the video; grey are all others. Below: confidence of zero-shot (dashed) and adapted (solid)'
              " along the video.</text>")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {40 + block * len(videos)}" '
            f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>{legend}{"".join(body)}</svg>\n')


def main():
    folder = pathlib.Path(sys.argv[1])
    table, shown, halves = [], [], []
    for head in sorted(folder.glob("head-*.safetensors")):
        for video in sorted(folder.glob("cctv-*.safetensors")):
            rows = answers(video, head)
            name, head_name = video.stem.removeprefix("cctv-"), head.stem.removeprefix("head-")
            was = figures([r["zero_shot"]["label"] for r in rows], [r["zero_shot"]["prob"] for r in rows])
            now = figures([r["label"] for r in rows], [r["prob"] for r in rows])
            scenes = 1 + max(r["scene"] for r in rows)
            halves.append((f"{name} under {head_name}", was[0] * (len(rows) - 1) / 100, now[0] * (len(rows) - 1) / 100))
            table.append(f"| {name} | {head_name} | {len(rows):,} | {scenes:,} | {was[0]:.1f} → {now[0]:.1f} | {was[1]:.2f} → {now[1]:.2f} |")
            if head_name == PICTURE_HEAD:
                shown.append((name, rows))
    (ROOT / "docs/cameras.svg").write_text(picture(shown))
    print(__doc__.split("\n")[0].replace("What scenes do", "# What scenes do").split(":")[0])
    print("""
    cargo build --release
    python3 docs/cameras.py STREAMS > docs/cameras.md

Five surveillance videos, every frame at 30 frames a second, seen by CLIP ViT-B/16; two heads of the same encoder. There are no
labels. What can be judged without them: how often the answer switches from a frame to the next (per 100), and whether confidence
rises although nothing new is seen. Zero-shot → adapted, with the settings as they ship (`ultta run`):

| video | head | frames | scenes | switches | mean confidence |
|---|---|---|---|---|---|""")
    print("\n".join(table))
    missed = [row for row in halves if row[2] > row[1] / 2]
    told = "; ".join(f"{name} ({now:.0f} of {was:.0f} switches in all)" for name, was, now in missed)
    print(f"\nSwitches are at most half of zero-shot's in {len(halves) - len(missed)} of {len(halves)}"
          + (f"; not in {told}." if missed else "."))
    print("\nThe head with 20 classes, frame by frame:\n\n![answers and confidence along five videos](cameras.svg)")


if __name__ == "__main__":
    main()
