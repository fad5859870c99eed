"""Normal clients alone and beside hostile ones, in turns: python3 hostile.py URL PID FEATURES.npy SECONDS [CSV]

The two kinds of period alternate every minute, so that whatever else the machine does falls on both. Prints p50 and p99 of
the normal clients in either, the ratio of p99 of each pair of neighbours, every status that was seen, and the server's memory
minute by minute (each second of it into CSV). Before it begins, the stream is shown more samples than it remembers for labels,
so that what fills up to a bound is full.

Fails if a normal request was not answered with 200, if p99 more than doubled, if the server answered a hostile client with
anything but a documented refusal, or if memory was not flat: the median of the last third above that of the middle third by more than
a twentieth and 4 MB, both taken where the normal clients are alone. (In the first third what large bodies take fills up to its bound.)

Hostile clients, in a process of their own: silent (connect and say nothing), slow (a byte of a body now and then), paused (all
of a large body but its end), huge (lengths over the limit, bodies without end, heads without end), half-open (half a head, then
the sending side is closed), cancelled (a large request, then gone), unread (a large answer that is never read), packed, broken,
infer (7 MB of what is no number, where numbers belong), pictures (96 large pictures in a request, its client gone before the
end; for the stream `shapes` of the tiny model). Of the four normal clients three classify and one predicts.
"""

import base64
import http.client
import json
import multiprocessing
import os
import random
import socket
import statistics
import struct
import sys
import threading
import time
import zlib
from collections import Counter
from pathlib import Path

PERIOD = 60.0
DIM = 16
REMEMBERED = 100_000
CLASSIFY = "/v1/streams/default/classify"
PREDICT = "/v1/streams/default/predict"
INFER = "/v2/models/default/infer"
PICTURES = "/v1/streams/shapes/pictures/predict"
# Refusals that the documentation names.
DOCUMENTED = {400, 401, 403, 404, 405, 408, 409, 411, 413, 415, 422, 429, 431, 503}


def npy(count, data):
    header = str({"descr": "<f4", "fortran_order": False, "shape": (count, DIM)}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def read_rows(path):
    raw = Path(path).read_bytes()
    return raw[10 + struct.unpack("<H", raw[8:10])[0] :]


def head(length=None, chunked=False, kind="application/octet-stream", path=CLASSIFY, extra=""):
    size = "transfer-encoding: chunked" if chunked else f"content-length: {length}"
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n{size}\r\n{extra}\r\n".encode()


def png(side):
    """A picture of one colour: few bytes, many pixels."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = zlib.compress((b"\0" + b"\x40\x80\xc0" * side) * side)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


class Hostile:
    """The hostile clients: a thread each, at work in every second period."""

    def __init__(self, address, data, begin, end):
        self.address, self.data, self.begin, self.end = address, data, begin, end
        self.statuses, self.done = Counter(), Counter()
        self.rows = [struct.unpack(f"<{DIM}f", data[i : i + 4 * DIM]) for i in range(0, 400 * 4 * DIM, 4 * DIM)]
        self.no_numbers = b'{"inputs": [{"name": "features", "shape": [1, 16], "datatype": "FP32", "data": [' + b'{"":0},' * 1_000_000 + b"0]}]}"
        self.many = json.dumps({"pictures": [base64.b64encode(png(2000)).decode()] * 96}).encode()
        self.large = npy(16_384, (data * (16_384 * 4 * DIM // len(data) + 1))[: 16_384 * 4 * DIM])

    def at_work(self):
        now = time.time()
        return now < self.end and int((now - self.begin) / PERIOD) % 2 == 1

    def pause(self, seconds):
        """Waits, but not into a period of peace."""
        until = time.time() + seconds
        while time.time() < until and self.at_work():
            time.sleep(0.05)

    def status_of(self, sock, wait=5.0):
        """The status of an answer, if one comes."""
        sock.settimeout(wait)
        try:
            line = sock.recv(64)
            if line.startswith(b"HTTP/1.1 "):
                self.statuses[int(line[9:12])] += 1
        except OSError:
            pass

    def silent(self, sock, rng):
        self.pause(rng.uniform(0.5, 12))

    def slow(self, sock, rng):
        sock.sendall(head(60_000_000))
        for _ in range(rng.randrange(40)):
            sock.sendall(b"x")
            self.pause(0.1)

    def paused(self, sock, rng):
        sock.sendall(head(60_000_000))
        block = bytes(1 << 20)
        for _ in range(rng.randrange(57)):
            sock.sendall(block)
        self.pause(rng.uniform(1, 8))

    def huge(self, sock, rng):
        kind = rng.randrange(3)
        if kind == 0:
            sock.sendall(head(10**12))
            sock.sendall(b"x" * 100_000)
        elif kind == 1:
            sock.sendall(head(chunked=True))
            for _ in range(rng.randrange(30)):
                sock.sendall(b"100000\r\n" + b"y" * 0x100000 + b"\r\n")
        else:
            sock.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 200_000)
        self.status_of(sock)

    def half_open(self, sock, rng):
        sock.sendall(head(1000)[: rng.randrange(5, 60)])
        sock.shutdown(socket.SHUT_WR)
        self.status_of(sock, 2)

    def cancelled(self, sock, rng):
        body = json.dumps({"features": self.rows[: rng.randrange(1, 400)]}).encode()
        path = CLASSIFY if rng.random() < 0.2 else PREDICT
        sock.sendall(head(len(body), kind="application/json", path=path) + body)
        # A reset, not a goodbye.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def unread(self, sock, rng):
        sock.sendall(head(len(self.large), path=PREDICT + "?probs=true") + self.large)
        self.pause(rng.uniform(5, 15))

    def broken(self, sock, rng):
        bodies = [b"{", b"[" * 50_000, b'{"features": [[1]]}', b'{"features": [{"":0}]}', b'"' + b"a" * 900_000 + b'"', os.urandom(3000)]
        body = rng.choice(bodies)
        extra = rng.choice(["", "content-encoding: gzip\r\n"])
        sock.sendall(head(len(body), kind="application/json", extra=extra) + body)
        self.status_of(sock)

    def infer(self, sock, rng):
        sock.sendall(head(len(self.no_numbers), kind="application/json", path=INFER) + self.no_numbers)
        self.status_of(sock)

    def pictures(self, sock, rng):
        sock.sendall(head(len(self.many), kind="application/json", path=PICTURES) + self.many)
        self.pause(rng.uniform(0, 1))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.pause(rng.uniform(1, 3))

    def work(self, kind, seed):
        rng = random.Random(seed)
        while time.time() < self.end:
            if not self.at_work():
                time.sleep(0.1)
                continue
            try:
                with socket.create_connection(self.address, timeout=10) as sock:
                    kind(sock, rng)
                    self.done[kind.__name__] += 1
            except OSError:
                pass
            self.pause(rng.uniform(0, 0.2))

    def run(self, results):
        kinds = [self.silent] * 12 + [self.slow] * 4 + [self.half_open] * 2 + [self.cancelled] * 2
        kinds += [self.huge, self.paused, self.unread, self.broken, self.infer, self.pictures]
        threads = [threading.Thread(target=self.work, args=(kind, i), daemon=True) for i, kind in enumerate(kinds)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self.end + 20 - time.time()))
        results.put((dict(self.statuses), dict(self.done)))


def quantile(values, q):
    values = sorted(values)
    return 1e3 * values[round(q * (len(values) - 1))]


def main(url, pid, features, seconds, csv=None):
    host, port = url.removeprefix("http://").split(":")
    address = (host, int(port))
    data = read_rows(features)
    bodies = [json.dumps({"features": [struct.unpack(f"<{DIM}f", data[i * 4 * DIM : (i + 1) * 4 * DIM])]}).encode() for i in range(500)]
    block = (data * (10_000 * 4 * DIM // len(data) + 1))[: 10_000 * 4 * DIM]
    connection = http.client.HTTPConnection(*address, timeout=120)
    for _ in range(REMEMBERED // 10_000 + 2):
        connection.request("POST", CLASSIFY, npy(10_000, block), {"content-type": "application/octet-stream"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
    begin = time.time() + 1
    end = begin + max(2, round(seconds / (2 * PERIOD)) * 2) * PERIOD if seconds >= 2 * PERIOD else begin + seconds
    results = multiprocessing.Queue()
    hostile = multiprocessing.Process(target=Hostile(address, data, begin, end).run, args=(results,))
    hostile.start()
    periods, statuses, memory = {}, Counter(), []

    def normal(seed):
        rng, path = random.Random(seed), PREDICT if seed == 3 else CLASSIFY
        connection = http.client.HTTPConnection(*address, timeout=30)
        while time.time() < end:
            period = int((time.time() - begin) / PERIOD)
            started = time.perf_counter()
            try:
                connection.request("POST", path, rng.choice(bodies), {"content-type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                statuses[answer.status] += 1
            except (OSError, http.client.HTTPException) as e:
                statuses[type(e).__name__] += 1
                connection = http.client.HTTPConnection(*address, timeout=30)
                continue
            if started and period >= 0:
                periods.setdefault(period, []).append(time.perf_counter() - started)
            time.sleep(0.008)

    def watch():
        while time.time() < end:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS"):
                    memory.append((time.time() - begin, int(line.split()[1]) / 1024))
            time.sleep(1)

    threads = [threading.Thread(target=normal, args=(i,), daemon=True) for i in range(4)] + [threading.Thread(target=watch, daemon=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hostile_statuses, done = results.get(timeout=60)
    hostile.join()
    # The first connection has been idle for long, and the server has closed it.
    connection = http.client.HTTPConnection(*address, timeout=120)
    connection.request("GET", "/healthz")
    health = json.load(connection.getresponse())
    if csv:
        Path(csv).write_text("seconds,resident_mb,hostile\n" + "".join(f"{t:.0f},{mb:.1f},{int(t / PERIOD) % 2}\n" for t, mb in memory))
    kinds = [[v for period, values in periods.items() if period % 2 == kind for v in values] for kind in (0, 1)]
    for name, values in zip(["alone", "beside hostile ones"], kinds):
        print(f"normal clients, {name}: {len(values)} requests, p50 {quantile(values, 0.5):.2f} ms, p99 {quantile(values, 0.99):.2f} ms")
    ratios = [quantile(periods[p + 1], 0.99) / quantile(periods[p], 0.99) for p in sorted(periods) if p % 2 == 0 and p + 1 in periods]
    print("p99 beside hostile ones to p99 alone, by pairs of periods:", ", ".join(f"{ratio:.2f}" for ratio in ratios), f"median {statistics.median(ratios):.2f}")
    print("normal statuses:", dict(statuses), "hostile statuses:", hostile_statuses, "hostile clients:", done)
    minutes = [statistics.median([mb for t, mb in memory if int(t / PERIOD) == p]) for p in sorted(periods) if any(int(t / PERIOD) == p for t, _ in memory)]
    print("resident, median of each period in MB:", " ".join(f"{mb:.0f}" for mb in minutes), f"; most {max(mb for _, mb in memory):.0f}; health: {health['status']}")
    calm = minutes[0::2]
    third = max(1, len(calm) // 3)
    middle = statistics.median(calm[third:-third] or calm[:third])
    first, last = statistics.median(calm[:third]), statistics.median(calm[-third:])
    print(f"resident while alone: first third {first:.1f} MB, middle {middle:.1f} MB, last {last:.1f} MB")
    problems = []
    if set(statuses) != {200}:
        problems.append(f"normal clients saw {dict(statuses)}")
    if quantile(kinds[1], 0.99) > 2 * quantile(kinds[0], 0.99):
        problems.append("p99 more than doubled")
    if not set(hostile_statuses) <= DOCUMENTED | {200}:
        problems.append(f"undocumented: {hostile_statuses}")
    if last > 1.05 * middle + 4:
        problems.append(f"memory grew from {middle:.0f} to {last:.0f} MB")
    if health["status"] != "ok":
        problems.append(f"health: {health}")
    sys.exit("; ".join(problems) or None)


main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), *sys.argv[5:])
