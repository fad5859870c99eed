"""Runs every fuzz target for some seconds of a processor: python3 fuzz/fuzz.py [SECONDS] [TARGET…].

cargo-fuzz asks for a nightly toolchain; RUSTC_BOOTSTRAP lets a stable one take its flags. Targets take turns of a minute by the
clock until each has had its seconds of a processor, or until MINUTES (environment) have passed. After every round a table in Markdown:
executions, seconds of a processor, edges of the program that were reached at the start and now, and in which of its turns a target
last reached a new one. New inputs stay in FOUND (environment) or a scratch folder, so that the committed corpus stays small; a crash stays in
fuzz/artifacts and fails the run, after the other targets have had their turns. SANITIZER=none builds and runs faster.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
TURN = 60
targets = sys.argv[2:] or sorted(path.stem for path in (ROOT / "fuzz/fuzz_targets").glob("*.rs"))
end = time.time() + 60 * float(os.environ.get("MINUTES", "1e9"))
environment = dict(os.environ, RUSTC_BOOTSTRAP="1")
sanitizer = ["-s", os.environ["SANITIZER"]] if "SANITIZER" in os.environ else []


def turn(target, found, seconds):
    """One turn of a target: executions, seconds of a processor, edges at its start and at its end, whether it crashed."""
    command = ["cargo", "fuzz", "run", *sanitizer, target, str(found), f"fuzz/corpus/{target}", "--"]
    # The machine may be busy: a slow input is told from one that waited.
    command += [f"-max_total_time={max(1, round(seconds))}", "-max_len=65536", "-rss_limit_mb=2048", "-timeout=60", "-print_final_stats=1"]
    before = os.times()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace")
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    edges = [int(found) for found in re.findall(r"^#\d+\s.*cov: (\d+)", done.stderr, re.MULTILINE)]
    runs = re.findall(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    if done.returncode:
        print(f"{target} failed:\n{done.stderr[-4000:]}", flush=True)
    return int(runs[-1]) if runs else 0, spent, edges[0] if edges else 0, edges[-1] if edges else 0, done.returncode != 0


def table(figures):
    print("| target | executions | processor, s | edges at the start | now | last new in turn |\n|---|---|---|---|---|---|")
    for target, f in figures.items():
        crashed = ", then a crash" if f["crashed"] else ""
        print(f"| {target} | {f['runs']:,}{crashed} | {f['spent']:.0f} | {f['first']} | {f['edges']} | {f['new']} of {f['turns']} |")
    print(flush=True)


subprocess.run(["cargo", "fuzz", "build", *sanitizer], cwd=ROOT, env=environment, check=True)
figures = {target: dict(runs=0, spent=0.0, first=0, edges=0, new=0, turns=0, crashed=False) for target in targets}
with tempfile.TemporaryDirectory() as scratch:
    while True:
        left = [t for t in targets if figures[t]["spent"] < SECONDS and not figures[t]["crashed"]]
        if not left or time.time() > end:
            break
        for target in left:
            if time.time() > end:
                break
            found = Path(os.environ.get("FOUND", scratch)) / target
            found.mkdir(parents=True, exist_ok=True)
            f = figures[target]
            runs, spent, first, edges, f["crashed"] = turn(target, found, min(TURN, SECONDS - f["spent"]))
            f["turns"] += 1
            f["first"] = f["first"] or first
            if edges > max(f["edges"], first if f["turns"] == 1 else 0):
                f["new"] = f["turns"]
            f["runs"], f["spent"], f["edges"] = f["runs"] + runs, f["spent"] + spent, max(f["edges"], edges)
        table(figures)
sys.exit(any(f["crashed"] for f in figures.values()))
