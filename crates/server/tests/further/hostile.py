"""Normal clients alone, then beside hostile ones: python3 hostile.py URL PID FEATURES.npy SECONDS

Prints p50 and p99 of the normal clients in both halves, every status that was seen, and the server's memory over time.
Fails if a normal request was not answered with 200, if p99 more than doubled, if the server answered a hostile client with
anything but a documented refusal, or if memory grew by more than a quarter after its first fifth.

Hostile clients: silent (connect and say nothing), slow (a byte of a body now and then), huge (lengths over the limit, bodies
without end), half-open (half a head, then the sending side is closed), cancelled (a large request, then gone), packed, broken.
"""

import http.client
import json
import os
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from pathlib import Path

url, pid, features, seconds = sys.argv[1].removeprefix("http://"), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
host, port = url.split(":")
address = (host, int(port))
CLASSIFY = "/v1/streams/default/classify"
# Refusals that the documentation names.
DOCUMENTED = {400, 401, 403, 404, 405, 408, 409, 411, 413, 415, 422, 429, 431, 503}

raw = Path(features).read_bytes()
length = struct.unpack("<H", raw[8:10])[0]
data = raw[10 + length :]
DIM = 16
rows = [struct.unpack(f"<{DIM}f", data[i : i + 4 * DIM]) for i in range(0, len(data), 4 * DIM)]
bodies = [json.dumps({"features": [row]}).encode() for row in rows[:500]]
stop = threading.Event()
hostile_now = threading.Event()
latencies, statuses, hostile_statuses, memory = {"alone": [], "hostile": []}, Counter(), Counter(), []


def normal(seed):
    rng = random.Random(seed)
    connection = http.client.HTTPConnection(*address, timeout=30)
    while not stop.is_set():
        half = "hostile" if hostile_now.is_set() else "alone"
        started = time.perf_counter()
        try:
            connection.request("POST", CLASSIFY, rng.choice(bodies), {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1
        except (OSError, http.client.HTTPException) as e:
            statuses[type(e).__name__] += 1
            connection = http.client.HTTPConnection(*address, timeout=30)
            continue
        latencies[half].append(time.perf_counter() - started)
        time.sleep(0.004)


def status_of(sock, wait=5.0):
    """The status of an answer, if one comes."""
    sock.settimeout(wait)
    try:
        line = sock.recv(64)
        if line.startswith(b"HTTP/1.1 "):
            hostile_statuses[int(line[9:12])] += 1
    except OSError:
        pass


def head(length=None, chunked=False, kind="application/octet-stream", path=CLASSIFY, extra=""):
    size = "transfer-encoding: chunked" if chunked else f"content-length: {length}"
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n{size}\r\n{extra}\r\n".encode()


def silent(sock, rng):
    time.sleep(rng.uniform(0.5, 12))


def slow(sock, rng):
    sock.sendall(head(60_000_000))
    for _ in range(rng.randrange(40)):
        sock.sendall(b"x")
        time.sleep(0.1)


def huge(sock, rng):
    if rng.random() < 0.5:
        sock.sendall(head(10**12))
        sock.sendall(b"x" * 100_000)
    else:
        sock.sendall(head(chunked=True))
        for _ in range(rng.randrange(30)):
            sock.sendall(b"100000\r\n" + b"y" * 0x100000 + b"\r\n")
    status_of(sock)


def half_open(sock, rng):
    sock.sendall(head(1000)[: rng.randrange(5, 60)])
    sock.shutdown(socket.SHUT_WR)
    status_of(sock, 2)


def cancelled(sock, rng):
    body = json.dumps({"features": rows[: rng.randrange(1, 400)]}).encode()
    path = CLASSIFY if rng.random() < 0.2 else CLASSIFY.replace("classify", "predict")
    sock.sendall(head(len(body), kind="application/json", path=path) + body)
    # A reset, not a goodbye.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def broken(sock, rng):
    body = rng.choice([b"{", b"[" * 50_000, b'{"features": [[1]]}', b'{"features": [{"":0}]}', os.urandom(3000)])
    extra = rng.choice(["", "content-encoding: gzip\r\n"])
    sock.sendall(head(len(body), kind="application/json", extra=extra) + body)
    status_of(sock)


def hostile(kind, seed):
    rng = random.Random(seed)
    while not stop.is_set():
        if not hostile_now.wait(0.2):
            continue
        try:
            with socket.create_connection(address, timeout=10) as sock:
                kind(sock, rng)
        except OSError:
            pass
        time.sleep(rng.uniform(0, 0.1))


def watch():
    while not stop.is_set():
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                memory.append(int(line.split()[1]) / 1024)
        time.sleep(1)


def quantile(values, q):
    values = sorted(values)
    return 1e3 * values[round(q * (len(values) - 1))]


threads = [threading.Thread(target=normal, args=(i,), daemon=True) for i in range(4)]
kinds = [silent] * 12 + [slow] * 4 + [huge] * 1 + [half_open] * 2 + [cancelled] * 2 + [broken] * 1
threads += [threading.Thread(target=hostile, args=(kind, i), daemon=True) for i, kind in enumerate(kinds)]
threads.append(threading.Thread(target=watch, daemon=True))
for thread in threads:
    thread.start()
time.sleep(seconds / 4)
hostile_now.set()
time.sleep(seconds * 3 / 4)
stop.set()
time.sleep(1)
health = json.load(__import__("urllib.request").request.urlopen(f"http://{url}/healthz"))
late = memory[max(1, len(memory) * 2 // 5) :]
early, most = max(memory[len(memory) // 4 : len(memory) * 2 // 5] or memory), max(late)
for half, values in latencies.items():
    print(f"normal clients, {half}: {len(values)} requests, p50 {quantile(values, 0.5):.2f} ms, p99 {quantile(values, 0.99):.2f} ms")
print("normal statuses:", dict(statuses), "hostile statuses:", dict(hostile_statuses))
print(f"resident: {memory[0]:.0f} MB at first, at most {early:.0f} MB soon, at most {most:.0f} MB later, {memory[-1]:.0f} MB at last; health: {health['status']}")
problems = []
if set(statuses) != {200}:
    problems.append(f"normal clients saw {dict(statuses)}")
if quantile(latencies["hostile"], 0.99) > 2 * quantile(latencies["alone"], 0.99):
    problems.append("p99 more than doubled")
if not set(hostile_statuses) <= DOCUMENTED | {200}:
    problems.append(f"undocumented: {dict(hostile_statuses)}")
if most > 1.25 * early + 32:
    problems.append(f"memory grew from {early:.0f} to {most:.0f} MB")
if health["status"] != "ok":
    problems.append(f"health: {health}")
sys.exit("; ".join(problems) or None)
