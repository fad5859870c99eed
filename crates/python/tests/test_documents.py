"""What is written runs: docstrings, the guide, the types."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ultta

ROOT = Path(__file__).parents[3]
PACKAGE = Path(ultta.__file__).parent
MODULES = sorted(p.stem for p in PACKAGE.glob("*.py") if p.stem not in ("ray", "spark", "torch", "__init__"))


@pytest.mark.parametrize("name", ["", *MODULES])
def test_docstrings_of_modules(name: str) -> None:
    module = importlib.import_module(f"ultta.{name}".rstrip("."))
    failed, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


@pytest.mark.parametrize("name", ["Encoder", "Head", "Session", "State", "Step", "ZeroShot", "Estimate", "Health"])
def test_docstrings_of_compiled_classes(name: str) -> None:
    owner = getattr(ultta, name)
    assert owner.__doc__
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    parser = doctest.DocTestParser()
    for attribute in ["", *(a for a in dir(owner) if not a.startswith("_"))]:
        thing = getattr(owner, attribute) if attribute else owner
        assert thing.__doc__, f"{name}.{attribute} has no docstring"
        where = f"{name}.{attribute}"
        runner.run(parser.get_doctest(thing.__doc__, {"np": np, "ultta": ultta}, where, None, None))
    assert runner.failures == 0


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python cell of docs/python.md, in order, in one namespace, but for those that need PyTorch."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "python.md").read_text()
    cells = re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)
    assert len(cells) >= 8
    names: dict[str, object] = {}
    for cell in cells:
        if "torch" not in cell and "open_clip" not in cell:
            exec(compile(cell, "docs/python.md", "exec"), names)


#: The packs that the README and the FAQ speak of: six of CLIP and three of a stand-in encoder, nine streams together.
CLIP = "caltech62 dtd47-exemplar flowers102-exemplar imagenet6k pets24 ucf101-exemplar".split()
STAND_IN = "cifar10 pacs-art_painting pacs-cartoon".split()


def test_figures_of_the_front_pages_are_those_of_the_pages_they_link_to() -> None:
    """What the README and the FAQ quote, beside `docs/harm.md` and `docs/results.md`, which commands make."""
    readme, faq, harm, results = ((ROOT / name).read_text() for name in ("README.md", "docs/faq.md", "docs/harm.md", "docs/results.md"))

    def lost(what: str) -> tuple[str, str, str]:
        """How many cells lose, of how many, and by how much at worst."""
        count, cells, worst = re.search(rf"\*\*{what}\*\*: (\d+) of (\d+) cells lose .*?\):\n  - [^:]+: \S+ [+-]([\d.]+)[,\n]", harm).groups()  # type: ignore[union-attr]
        return count, cells, worst

    (top1, cells, worst), (ece, _, _) = lost("Top-1, points"), lost("ECE, points")
    assert re.search(rf"of {cells} streams {top1} loses? top-1 \(at most {worst} points\) and {ece} lose calibration", " ".join(readme.split()))

    table = harm.split("## Top-1, points")[1].split("\n## ")[0]
    header, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    change = {row[0]: {pack: cell for pack, cell in zip(header[1:], row[1:])} for row in rows}

    def gain(protocol: str, packs: list[str]) -> float:
        return float(np.mean([float(change[protocol][pack].rstrip("▼")) for pack in packs]))

    # The three rows of the six packs: shuffled, class after class, a fifth of the classes.
    shown = re.findall(r"\| ([\d.]+) \| ([\d.]+) \|\n", readme[readme.index("| six packs") :])[:3]
    gains = [float(after) - float(before) for before, after in shown]
    np.testing.assert_allclose(gains, [gain(name, CLIP) for name in ("iid", "sorted", "partial:0.2")], atol=0.15)
    (told,) = re.findall(r"\+([\d.]+) points on the\s+mean of nine streams", faq)
    assert float(told) == pytest.approx(gain("iid", CLIP + STAND_IN), abs=0.06)

    columns = [line for line in results.splitlines() if line.startswith("| method | iid")][0].split("|")
    ours = [line for line in results.splitlines() if line.startswith("| ul-tta |")][0].replace("*", "").split("|")
    mean, nll, error = (float(ours[columns.index(name)]) for name in (" mean ", " NLL ", " ECE "))
    quoted = f"(+{mean:.1f} points), NLL ({nll:+.2f}) and ECE ({error:+.1f} points)".replace("-", "−")
    assert quoted in " ".join(readme.split())

    # The table beside others: its last column is the page's.
    for name, _, _, figure in beside_others(readme):
        (line,) = [line for line in results.splitlines() if line.startswith(f"| {name} |") and line.count("|") == len(columns) - 1]
        assert figure == pytest.approx(float(line.replace("*", "").split("|")[columns.index(" mean ")]), abs=0.06), name


def beside_others(readme: str) -> list[tuple[str, float, float, float]]:
    """The README's table beside other methods: drawn pictures shuffled and shape after shape, packs."""
    rows = re.findall(r"^\| \W*(\w+)\W* \| (?:at once|when)[^|]*\| (\S+) \| (\S+) \| (\S+) \|$", readme, flags=re.M)
    assert [name for name, *_ in rows] == ["ultta", "TDA", "DOTA", "LAME"]
    shown = [[float(figure.replace("−", "-")) for figure in figures] for _, *figures in rows]
    return [({"ultta": "ul-tta"}.get(row[0], row[0].lower()), *figures) for row, figures in zip(rows, shown)]  # type: ignore[misc]


def test_what_the_limits_call_measured_has_figures_and_where_they_are_from() -> None:
    """A page, a command or what it was measured on; figures quoted from `docs/harm.md` are its."""
    limits, harm = ((ROOT / "docs" / name).read_text() for name in ("limits.md", "harm.md"))
    figures = re.compile(r"(?<![\w.])\d+\.\d\b")
    rows: dict[str, set[str]] = {}
    for line in harm.splitlines():
        name = re.match(r"\| (\S+) \| [+–-]", line)
        if name:
            rows.setdefault(name[1], set()).update(figures.findall(line))
    told = set(figures.findall(harm.split("\n## After garbage\n")[1].split("\n## ")[0]))
    measured = re.findall(r"^- \*\*Measured:\*\* (.*?)\n(?=- |\n)", limits, flags=re.S | re.M)
    assert len(measured) > 10
    quoting = 0
    for text in measured:
        assert text == "not measured." or (re.search(r"\d", text) and ("](" in text or "`" in text)), text
        named = [name for name in re.findall(r"`([^`]+)`", text) if name in rows]
        if "harm.md" in text:
            held = told.union(*(rows[name] for name in named))
            assert named and set(figures.findall(text)) <= held, (text, set(figures.findall(text)) - held)
            quoting += 1
    assert quoting > 5


def test_the_comparison_that_anybody_can_make(tmp_path: Path) -> None:
    """The README's commands on the drawn pictures, and what its table has of them."""
    readme = (ROOT / "README.md").read_text()
    (command,) = re.findall(r"^ultta (eval --images shapes .*)$", readme, flags=re.M)
    run = [sys.executable, "-m", "ultta"]
    subprocess.run([*run, "demo", "--pictures", "shapes"], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run([*run, *command.split(), "--json"], cwd=tmp_path, check=True, capture_output=True, text=True)
    runs = json.loads(done.stdout)["runs"]

    def top1(method: str, protocol: str) -> float:
        cells = [entry["top1"] for entry in runs if (entry["method"], entry["protocol"]) == (method, protocol)]
        assert len(cells) == 10
        return float(np.mean(cells))

    for method, shuffled, sorted_, _ in beside_others(readme):
        gained = [100 * (top1(method, protocol) - top1("zero-shot", protocol)) for protocol in ("iid", "sorted")]
        np.testing.assert_allclose([shuffled, sorted_], gained, atol=0.06, err_msg=method)


def test_types_are_complete_and_strict() -> None:
    pytest.importorskip("mypy")
    for command in (
        ["mypy", "--strict", "--ignore-missing-imports", "-p", "ultta"],
        ["mypy.stubtest", "ultta._ultta"],
    ):
        done = subprocess.run([sys.executable, "-m", *command], cwd="/", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
