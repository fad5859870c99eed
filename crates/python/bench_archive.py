"""A million simulated rows as Parquet: `ultta run`, Ray and Spark in turns on the same file, in local mode on two cores.

    pip install '.[ray,spark]' psutil        # with the feature parquet: maturin develop --release --features parquet
    python3 crates/python/bench_archive.py --folder FOLDER

Prints tables in Markdown (docs/archives.md): rows a second beside `ultta run`, the largest memory of all processes (what they
share counted once), processor seconds of all processes (which other work on the machine moves less), what starting the engine took. The answers of Ray and of Spark are compared with each other, and those of one
camera with a session's here. Then a worker of each engine is killed in the middle, and the answers are compared with those of the run
before. Ends with 1 where an engine is slower than asked: Ray below 0.5 of `ultta run`, Spark below 0.2 (medians of the rounds).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import ultta
from ultta._ultta import _Simulator

ENGINES = ("run", "ray", "spark")
#: How fast an engine has to be, beside `ultta run`.
ASKED = {"ray": 0.5, "spark": 0.2}
GROUP = 8192
ANSWERS = ["camera", "frame", "label", "class", "prob", "zero_shot_label", "scene", "admitted"]


def make(folder: Path, rows: int, classes: int, dim: int, cameras: int) -> None:
    """The archive: frames of all cameras in turns."""
    folder.mkdir(parents=True, exist_ok=True)
    simulator = _Simulator(classes, dim, 0)
    simulator.head.save(folder / "head.safetensors")
    kind = pa.list_(pa.float32())
    schema = pa.schema([("camera", pa.string()), ("frame", pa.int64()), ("features", kind)])
    aside = folder / "rows.aside"
    # Numbers without any pattern: compression would cost time and save nothing.
    with pq.ParquetWriter(aside, schema, compression="none", use_dictionary=["camera"]) as writer:
        for first in range(0, rows, GROUP):
            count = min(GROUP, rows - first)
            features, _ = simulator.rows(count)
            frame = np.arange(first, first + count)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), dim).cast(kind)
            names = [f"camera {row % cameras}" for row in frame]
            writer.write_table(pa.table([pa.array(names), pa.array(frame), lists], schema=schema))
    aside.rename(folder / "rows.parquet")


def work(engine: str, folder: Path, partitions: int, store: int) -> None:
    """One engine, in a process of its own. Prints how long it started and worked."""
    source, target = str(folder / "rows.parquet"), str(folder / engine)
    # Ray adds to what is there.
    shutil.rmtree(target, ignore_errors=True)
    head = ultta.Head.load(folder / "head.safetensors")
    begun = time.monotonic()
    if engine == "ray":
        import ray

        from ultta.ray import adapt

        ray.init(num_cpus=2, object_store_memory=store << 30, include_dashboard=False, logging_level="ERROR")
        ray.data.DataContext.get_current().enable_progress_bars = False
        started = time.monotonic()
        rows = ray.data.read_parquet(source)
        found = adapt(rows, head, key="camera", time="frame", partitions=partitions)
        found.write_parquet(target)
    else:
        from pyspark.sql import SparkSession

        from ultta.spark import adapt

        builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.memory", "3g").config("spark.sql.shuffle.partitions", partitions)
        # The numbers have no pattern; and a batch of rows is to be some megabytes.
        builder = builder.config("spark.shuffle.compress", "false").config("spark.sql.execution.arrow.maxRecordsPerBatch", 2048)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        started = time.monotonic()
        rows = spark.read.parquet(source)
        adapt(rows, head, key="camera", time="frame").write.mode("overwrite").parquet(target)
    done = time.monotonic()
    print(json.dumps({"start": started - begun, "work": done - started}))


def command(engine: str, folder: Path, partitions: int, store: int) -> list[str]:
    if engine != "run":
        own = [sys.executable, __file__, "--folder", str(folder), "--partitions", str(partitions)]
        return [*own, "--store", str(store), "--engine", engine]
    files = ["--features", "rows.parquet", "--head", "head.safetensors", "--out", "run.parquet"]
    return [sys.executable, "-m", "ultta", "run", "--quiet", *files]


def is_worker(engine: str, process: psutil.Process) -> bool:
    if engine == "ray":
        return process.cmdline()[:1] in (["ray::_answer"], ["ray::_answer_some"])
    parent = process.parent()
    return parent is not None and "pyspark.daemon" in " ".join(parent.cmdline())


def memory(processes: list[psutil.Process]) -> int:
    """Bytes of all processes; what several share is shared out among them."""
    total = 0
    for process in processes:
        try:
            with open(f"/proc/{process.pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
        except OSError:
            continue
    return total


def measure(engine: str, folder: Path, partitions: int, store: int, kill: bool = False) -> dict[str, float]:
    """Runs an engine and watches it; with `kill`, kills a worker that has worked for a second."""
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    begun = time.monotonic()
    log = open(folder / f"{engine}.log", "w")
    child = subprocess.Popen(
        command(engine, folder, partitions, store), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=log, text=True
    )
    top, killed, first = psutil.Process(child.pid), 0, {}
    spent: dict[int, float] = {}
    peak, looks = 0, 0
    while child.poll() is None:
        try:
            below = top.children(recursive=True)
        except psutil.Error:
            break
        # To look at memory takes time of its own: once a second.
        peak = max(peak, memory([top, *below])) if looks % 5 == 0 else peak
        looks += 1
        for process in [top, *below]:
            try:
                times = process.cpu_times()
                spent[process.pid] = times.user + times.system
            except psutil.Error:
                continue
        for process in below if kill and not killed else []:
            try:
                if is_worker(engine, process):
                    busy = process.cpu_times().user
                    if busy - first.setdefault(process.pid, busy) > 0.5:
                        os.kill(process.pid, signal.SIGKILL)
                        killed = process.pid
                        break
            except psutil.Error:
                continue
        time.sleep(0.2)
    out = child.communicate()[0]
    seconds = time.monotonic() - begun
    log.close()
    if child.returncode:
        raise SystemExit(f"{engine}: it ended with {child.returncode}; see {folder / f'{engine}.log'}")
    if kill and not killed:
        raise SystemExit(f"{engine}: no worker was met")
    told = json.loads(out.strip().splitlines()[-1]) if engine != "run" else {"start": 0.0, "work": seconds}
    return {**told, "peak": peak, "processor": sum(spent.values())}


def answers(folder: Path, engine: str) -> pa.Table:
    table = pq.read_table(folder / engine, columns=ANSWERS)
    return table.sort_by([("camera", "ascending"), ("frame", "ascending")]).combine_chunks()


def check_one(folder: Path, engine: str, found: pa.Table) -> None:
    """The answers of the first camera are those of a session here."""
    rows = pq.read_table(folder / "rows.parquet", filters=[("camera", "=", "camera 0")])
    features = rows["features"].combine_chunks()
    features = features.flatten().to_numpy().reshape(len(rows), -1)
    step = ultta.Session(ultta.Head.load(folder / "head.safetensors")).step(features, keep_scores=False)
    own = found.filter(pc.equal(found["camera"], "camera 0"))
    for name, wanted in (("label", step.labels), ("prob", step.prob), ("scene", step.scenes), ("admitted", step.admitted)):
        np.testing.assert_array_equal(own[name].to_numpy(), wanted, err_msg=f"{engine}: {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="a folder for files (some gigabytes)")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=345)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--cameras", type=int, default=16)
    parser.add_argument("--partitions", type=int, default=32)
    parser.add_argument("--store", type=int, default=4, help="GiB of Ray's object store; what is beyond it goes to disk")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-kills", action="store_true", help="leave the killed workers out")
    parser.add_argument("--engine", choices=("ray", "spark"), help="only this one, once, without any table")
    args = parser.parse_args()
    folder = args.folder.resolve()
    if args.engine:
        return work(args.engine, folder, args.partitions, args.store)
    if not (folder / "rows.parquet").exists():
        make(folder, args.rows, args.classes, args.dim, args.cameras)
    rows = pq.read_metadata(folder / "rows.parquet").num_rows
    found: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    slow: list[str] = []
    for _ in range(args.rounds):
        for engine in ENGINES:
            found[engine].append(measure(engine, folder, args.partitions, args.store))
            print(engine, found[engine][-1], file=sys.stderr, flush=True)
    print("| | rows a second | beside `ultta run` (each round) | memory, largest | processor s | engine start |\n|---|---|---|---|---|---|")
    for engine, rounds in found.items():
        rate = rows / float(np.median([one["work"] for one in rounds]))
        ratios = [base["work"] / one["work"] for base, one in zip(found["run"], rounds)]
        beside = ", ".join(f"{ratio:.2f}×" for ratio in ratios)
        if float(np.median(ratios)) < ASKED.get(engine, 0.0):
            slow.append(f"{engine}: {np.median(ratios):.2f}× of `ultta run`, {ASKED[engine]}× are asked for")
        peak = max(one["peak"] for one in rounds) / 2**30
        start = float(np.median([one["start"] for one in rounds]))
        processor = float(np.median([one["processor"] for one in rounds]))
        name = "`ultta run`" if engine == "run" else engine.capitalize()
        print(f"| {name} | {rate:,.0f} | {beside} | {peak:.1f} GiB | {processor:.0f} | {start:.0f} s |")
    print()
    ray, spark = answers(folder, "ray"), answers(folder, "spark")
    if not ray.equals(spark.cast(ray.schema)):
        raise SystemExit("ray and spark: other answers")
    print(f"ray and spark: the same {rows:,} answers")
    for engine in ENGINES[1:]:
        whole = answers(folder, engine)
        check_one(folder, engine, whole)
        if args.no_kills:
            continue
        again = measure(engine, folder, args.partitions, args.store, kill=True)
        if not answers(folder, engine).equals(whole):
            raise SystemExit(f"{engine}: other answers after a worker was killed")
        print(f"{engine}: a worker was killed in the middle; the same {rows:,} answers, {again['work']:.0f} s", flush=True)
    if slow:
        raise SystemExit("; ".join(slow))


if __name__ == "__main__":
    main()
