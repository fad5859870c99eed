"""Load on the service, from a second process on loopback, with wrk.

    apt-get install wrk
    cargo build --release
    python3 crates/server/bench/bench.py rates                 rounds interleaved: learning, zero-shot, FastAPI
    python3 crates/server/bench/bench.py soak --seconds 600    memory over time

Rows are simulated: unit vectors around random class anchors, d = 512, 1000 classes. Needs numpy; `rates` installs
fastapi and uvicorn into a folder of its own (--venv). Prints Markdown. Durability is the default, `interval`.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["rates", "soak"])
parser.add_argument("--seconds", type=int, default=6, help="of each measurement")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--dim", type=int, default=512)
parser.add_argument("--classes", type=int, default=1000)
parser.add_argument("--connections", type=int, default=32)
parser.add_argument("--ultta", default=str(ROOT / "target/release/ultta"))
parser.add_argument("--venv", default=str(Path(tempfile.gettempdir()) / "ultta-bench-venv"))
parser.add_argument("--data", default=None, help="folder for the streams; a temporary one if not given")
args = parser.parse_args()


def python():
    """A Python with numpy, fastapi and uvicorn."""
    path = Path(args.venv) / "bin/python"
    if not path.exists():
        subprocess.run([sys.executable, "-m", "venv", args.venv], check=True)
    probe = [str(path), "-c", "import numpy, fastapi, uvicorn, uvloop, httptools"]
    if subprocess.run(probe, stderr=subprocess.DEVNULL).returncode:
        packages = ["numpy", "fastapi", "uvicorn", "uvloop", "httptools"]
        subprocess.run([str(path), "-m", "pip", "install", "-q", *packages], check=True)
    return str(path)


if os.environ.get("ULTTA_BENCH") != "1":
    sys.exit(subprocess.run([python(), __file__, *sys.argv[1:]], env=dict(os.environ, ULTTA_BENCH="1")).returncode)

import numpy as np  # noqa: E402
from rows import safetensors, unit  # noqa: E402

scratch = tempfile.TemporaryDirectory()
scratch_path = Path(scratch.name)


rng = np.random.default_rng(0)
head = unit(rng.normal(size=(args.classes, args.dim)))
# About the cosines and the accuracy of CLIP: the anchor of the class is one part among noise.
classes = rng.integers(args.classes, size=4096)
noise = unit(rng.normal(size=(4096, args.dim)))
features = unit(0.24 * head[classes] + 0.97 * noise)
head_file = scratch_path / "head.safetensors"
strings = {"classes": json.dumps([f"class {i}" for i in range(args.classes)]), "logit_scale": "100"}
head_file.write_bytes(safetensors("prototypes", head, strings))
np.save(scratch_path / "head.npy", head)


def bodies(name, items):
    path = scratch_path / name
    path.write_bytes(b"".join(f"{len(item)}\n".encode() + item for item in items))
    return path


one = [json.dumps({"features": [[round(float(v), 6) for v in row]]}).encode() for row in features[:1024]]
blocks = [features[i : i + 64] for i in range(0, 4096, 64)]
ONE = bodies("one", one)
BULK = bodies("bulk", [safetensors("features", block, {}) for block in blocks])
RAW = bodies("raw", [block.tobytes() for block in blocks])


def wrk(url, path, file, kind, seconds, connections=None):
    environment = dict(os.environ, BODIES=str(file), KIND=kind, PATH_=path)
    connections = connections or args.connections
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", str(HERE / "post.lua"), url]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    line = next(line for line in output.splitlines() if line.startswith("RESULT"))
    rate, p50, p99, errors = line.split()[1:]
    return {"rate": float(rate), "p50": float(p50), "p99": float(p99), "errors": int(errors)}


def call(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=30))


def serve(folder):
    command = [args.ultta, "serve", "--head", str(head_file), "--data-dir", folder, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    url = "http://" + process.stdout.readline().split()[-1]
    call(f"{url}/v1/streams", {"name": "zero", "head_of": "default", "method": "zero-shot"})
    call(f"{url}/v1/streams", {"name": "sync", "head_of": "default", "durability": "sync"})
    return process, url


def resident(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def rates():
    folder = args.data or str(scratch_path / "data")
    process, url = serve(folder)
    port = 18991
    # One thread for its matrix products: more only get in each other's way on so few cores.
    environment = dict(os.environ, HEAD_NPY=str(scratch_path / "head.npy"), OPENBLAS_NUM_THREADS="1")
    command = [sys.executable, "-m", "uvicorn", "fastapi_server:app", "--port", str(port), "--log-level", "warning"]
    fastapi = subprocess.Popen(command, cwd=HERE, env=environment)
    other = f"http://127.0.0.1:{port}"
    for _ in range(100):
        try:
            urllib.request.urlopen(f"{other}/openapi.json", timeout=1)
            break
        except OSError:
            time.sleep(0.2)
    json_kind, binary = "application/json", "application/octet-stream"
    cases = {
        "one row, learning": (url, "/v1/streams/default/classify", ONE, json_kind, 1),
        "one row, zero-shot": (url, "/v1/streams/zero/classify", ONE, json_kind, 1),
        "one row, learning, durability sync": (url, "/v1/streams/sync/classify", ONE, json_kind, 1),
        "one row, FastAPI": (other, "/classify", ONE, json_kind, 1),
        "64 rows, learning": (url, "/v1/streams/default/classify", BULK, binary, 64),
        "64 rows, zero-shot": (url, "/v1/streams/zero/classify", BULK, binary, 64),
        "64 rows, FastAPI": (other, "/binary", RAW, binary, 64),
    }
    found = {name: [] for name in cases}
    try:
        # Evidence is young and dear at the start of a stream; the figures are those of a stream in use.
        for stream in ["default", "zero", "sync"]:
            wrk(url, f"/v1/streams/{stream}/classify", BULK, binary, args.seconds)
        for round_ in range(args.rounds):
            names = list(cases) if round_ % 2 == 0 else list(cases)[::-1]
            for name in names:
                target, path, file, kind, rows = cases[name]
                connections = args.connections if rows == 1 else 4
                found[name].append(wrk(target, path, file, kind, args.seconds, connections) | {"rows": rows})
    finally:
        process.send_signal(signal.SIGTERM)
        fastapi.send_signal(signal.SIGTERM)
        process.wait()
        fastapi.wait()
    print(f"d = {args.dim}, C = {args.classes}, {args.rounds} rounds of {args.seconds} s, interleaved\n")
    print("| | requests/s | rows/s | p50, ms | p99, ms | errors |")
    print("|---|---|---|---|---|---|")
    median = {}
    for name, runs in found.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in ["rate", "p50", "p99"]}
        median[name] = middle["rate"]
        errors = sum(run["errors"] for run in runs)
        rows = runs[0]["rows"]
        print(f"| {name} | {middle['rate']:.0f} | {middle['rate'] * rows:.0f} | {middle['p50']:.2f} | {middle['p99']:.2f} | {errors} |")
    print()
    for rows in ["one row", "64 rows"]:
        learning, zero, fast = (median[f"{rows}, {way}"] for way in ["learning", "zero-shot", "FastAPI"])
        each = [a["rate"] / b["rate"] for a, b in zip(found[f"{rows}, learning"], found[f"{rows}, zero-shot"])]
        spread = ", ".join(f"{ratio:.2f}" for ratio in each)
        print(f"{rows}: learning / zero-shot {learning / zero:.2f} (rounds {spread}); learning / FastAPI {learning / fast:.1f}")


def soak():
    folder = args.data or str(scratch_path / "data")
    process, url = serve(folder)
    environment = dict(os.environ, BODIES=str(ONE), KIND="application/json", PATH_="/v1/streams/default/classify")
    command = ["wrk", "-t1", "-c32", f"-d{args.seconds}s", "--timeout", "10s", "-s", str(HERE / "post.lua"), url]
    load = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    started = time.time()
    print("| s | samples | resident, MB | log, MB | longest wait for the disk, ms | degraded |")
    print("|---|---|---|---|---|---|")
    while load.poll() is None:
        time.sleep(max(1, args.seconds / 20))
        stream = call(f"{url}/v1/streams/default")
        status = stream["status"]
        row = [f"{time.time() - started:.0f}", status["health"]["seen"], f"{resident(process.pid):.0f}"]
        print("|", " | ".join(str(v) for v in row + [f"{status['log_bytes'] / 1e6:.0f}", f"{status['sync_lag_ms']:.0f}", status["degraded"]]), "|", flush=True)
    print(load.stdout.read())
    process.send_signal(signal.SIGTERM)
    process.wait()


{"rates": rates, "soak": soak}[args.what]()
