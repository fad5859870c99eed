"""Runs every fuzz target for some seconds: python3 fuzz/fuzz.py [SECONDS] [TARGET…].

cargo-fuzz asks for a nightly toolchain; RUSTC_BOOTSTRAP lets a stable one take its flags. The targets are run in the order in which they
are named (by name if none is), JOBS (environment, 1) at a time, in turns of TURN (240) seconds, each until it has had its SECONDS, or until
MINUTES (environment) have passed. Seconds are those of a processor, so the run may stand behind everything else; with BY=clock they are
seconds by the clock. Both are kept.

    nice cargo fuzz build                   (RUSTC_BOOTSTRAP=1; with -s none if SANITIZER=none, which builds and runs faster)
    FOUND=fuzz/found JOBS=2 SANITIZER=none chrt --idle 0 python3 fuzz/fuzz.py 1200
    FOUND=fuzz/found JOBS=6 BY=clock TURN=1200 SANITIZER=none chrt --idle 0 python3 fuzz/fuzz.py 1200

FOUND (environment) is a folder for new inputs and for figures.json, what each target has had so far. A later run with the same folder
goes on from there: a target that has its seconds is skipped. Without it both are in a scratch folder and are forgotten. The figures in
fuzz/found are kept with the project, the inputs are not, so that the committed corpus stays small. To begin anew, take a target out of
figures.json. With SECONDS 0 nothing is run and the figures are printed.

After every turn, a table in Markdown: executions, seconds by the clock and of a processor, edges of the program that were reached at the start and now, in
which of its turns a target last reached a new one, and the trees that it was run on. A crash stays in fuzz/artifacts and fails the run,
after the other targets have had their turns.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
TURN = float(os.environ.get("TURN", "240"))
# What SECONDS counts: the key of the figures.
BY = {"processor": "spent", "clock": "clock"}[os.environ.get("BY", "processor")]
JOBS = int(os.environ.get("JOBS", "1"))
TARGETS = sys.argv[2:] or sorted(path.stem for path in (ROOT / "fuzz/fuzz_targets").glob("*.rs"))
END = time.time() + 60 * float(os.environ.get("MINUTES", "1e9"))
# An input that takes as long is a fault: seconds by the clock, and then of a processor.
SLOW = 60
TIMED_OUT = 70  # libFuzzer's exit code
scratch = tempfile.TemporaryDirectory()
FOUND = Path(os.environ.get("FOUND", scratch.name)).resolve()
environment = dict(os.environ, RUSTC_BOOTSTRAP="1")
if "TMPDIR" not in os.environ and os.access("/dev/shm", os.W_OK):
    environment["TMPDIR"] = "/dev/shm"  # many readers open files: in memory they are read faster
stopped = threading.Event()
lock = threading.Lock()


def ask(*command):
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def processor(pid):
    """Seconds of a processor that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(command, seconds=float("inf")):
    """Runs a fuzzer until it ends or has had its seconds: exit code, seconds by the clock and of a processor, what it said."""
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=said)
        ended, began = 0, time.monotonic()
        while not ended:
            time.sleep(0.5)
            had = time.monotonic() - began if BY == "clock" else processor(child.pid)
            if stopped.is_set() or time.time() > END or had >= seconds:
                # libFuzzer ends after the input at hand. (`send_signal` would reap the child, and its seconds with it.)
                os.kill(child.pid, signal.SIGUSR1)
            ended, status, usage = os.wait4(child.pid, os.WNOHANG)
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        clock = time.monotonic() - began
        return child.returncode, clock, usage.ru_utime + usage.ru_stime, said.read().decode(errors="replace")


def turn(target, seconds):
    """One turn of a target: executions, seconds by the clock and of a processor, edges at its start and at its end, whether it crashed."""
    found, artifacts = FOUND / target, ROOT / "fuzz/artifacts" / target
    found.mkdir(parents=True, exist_ok=True)
    artifacts.mkdir(parents=True, exist_ok=True)
    program = str(PROGRAMS / target)
    flags = [f"-artifact_prefix={artifacts}/", "-max_len=65536", "-rss_limit_mb=2048", f"-timeout={SLOW}", f"-report_slow_units={SLOW}", "-print_final_stats=1"]
    code, clock, spent, said = run([program, str(found), f"fuzz/corpus/{target}", *flags], seconds)
    kept = re.findall(r"Test unit written to (\S+)", said)
    if code == TIMED_OUT and kept:
        # The machine may be busy: a slow input is told from one that waited.
        again, _, slow, _ = run([program, kept[-1], f"-timeout={100 * SLOW}"])
        if again == 0 and slow < SLOW:
            Path(kept[-1]).unlink()
            code = 0
    edges = [int(each) for each in re.findall(r"^#\d+\s.*cov: (\d+)", said, re.MULTILINE)]
    runs = re.findall(r"stat::number_of_executed_units:\s*(\d+)", said) or re.findall(r"^#(\d+)\s", said, re.MULTILINE)
    if code:
        print(f"{target} failed:\n{said[-4000:]}", flush=True)
    return int(runs[-1]) if runs else 0, clock, spent, edges[0] if edges else 0, edges[-1] if edges else 0, code != 0


def table():
    print("| target | executions | clock, s | processor, s | edges at the start | now | last new in turn | tree |\n|---|---|---|---|---|---|---|---|")
    for target, f in sorted(figures.items(), key=lambda each: -each[1][BY]):
        crashes = f", {f['crashes']} crashes" if f["crashes"] else ""
        print(f"| {target} | {f['runs']:,}{crashes} | {f['clock']:.0f} | {f['spent']:.0f} | {f['first']} | {f['edges']} | {f['new']} of {f['turns']} | {', '.join(f['trees'])} |")
    print(f"\n{sum(f[BY] >= SECONDS for f in figures.values())} of {len(TARGETS)} targets have had {SECONDS:.0f} s\n", flush=True)


def work():
    """Takes the first target that is not done and not at work, until there is none."""
    while time.time() < END and not stopped.is_set():
        with lock:
            left = [t for t in TARGETS if t not in busy and t not in crashed and figures.get(t, FRESH)[BY] < SECONDS]
            if not left:
                return
            target = left[0]
            busy.add(target)
            f = figures.setdefault(target, dict(FRESH, trees=[]))
        runs, clock, spent, first, edges, failed = turn(target, min(TURN, SECONDS - f[BY]))
        with lock:
            busy.remove(target)
            f["turns"] += 1
            f["first"] = f["first"] or first
            if edges > max(f["edges"], first if f["turns"] == 1 else 0):
                f["new"] = f["turns"]
            f["runs"], f["edges"] = f["runs"] + runs, max(f["edges"], edges)
            f["clock"], f["spent"] = round(f["clock"] + clock, 1), round(f["spent"] + spent, 1)
            f["trees"] += [tree] if tree not in f["trees"] else []
            if failed:
                f["crashes"] += 1
                crashed.add(target)
            kept.parent.mkdir(parents=True, exist_ok=True)
            new = kept.with_suffix(".new")
            new.write_text("{\n" + ",\n".join(f"{json.dumps(t)}: {json.dumps(figures[t])}" for t in sorted(figures)) + "\n}\n")
            new.rename(kept)
            table()


FRESH = dict(runs=0, clock=0.0, spent=0.0, first=0, edges=0, new=0, turns=0, crashes=0, trees=[])
kept = FOUND / "figures.json"
figures = json.loads(kept.read_text()) if kept.exists() else {}
busy, crashed = set(), set()
if SECONDS > 0:
    sanitizer = ["-s", os.environ["SANITIZER"]] if "SANITIZER" in os.environ else []
    subprocess.run(["cargo", "fuzz", "build", *sanitizer], cwd=ROOT, env=environment, check=True)
    host = re.search(r"host: (\S+)", ask("rustc", "-vV")).group(1)
    PROGRAMS = ROOT / "fuzz/target" / host / "release"
    tree = ask("git", "rev-parse", "--short", "HEAD")
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: stopped.set())
    workers = [threading.Thread(target=work) for _ in range(JOBS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
else:
    table()
sys.exit(bool(crashed))
