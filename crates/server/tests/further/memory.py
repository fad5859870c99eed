"""Memory that a token could fill: python3 memory.py ULTTA [CASE…]

Each case begins a server of its own, which has `waiting_bytes` as it is (256 MiB), and takes some seconds. Prints the resident memory of the
server before and at most, in MB. Fails if a case took more than three times `waiting_bytes`, or if the server does not answer others.

gone: clients of `classify` that hang up once they have sent. shadow: a shadow that is slower than the stream it follows, and one client.
classes: answers that nobody reads. lines: bodies of `infer` that call themselves lines. states, returns: whole states of 107 MB, for clients
that do not read them, and for clients that wait to return to a snapshot.
"""

import http.client
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

MOST = 3 * 256
rng = random.Random(17)


# The upper byte of a number of two bytes: any sign, and a size between 1/8 and 1.
UPPER = bytes((byte & 0x80) | 0x30 | (byte & 0x0B) for byte in range(256))


def npy(rows, dim):
    """Rows of numbers of two bytes."""
    header = str({"descr": "<f2", "fortran_order": False, "shape": (rows, dim)}).encode() + b"\n"
    data = bytearray(os.urandom(2 * rows * dim))
    data[1::2] = data[1::2].translate(UPPER)
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def unit_rows(count, dim):
    for _ in range(count):
        row = [rng.gauss(0, 1) for _ in range(dim)]
        norm = sum(v * v for v in row) ** 0.5
        yield [v / norm for v in row]


class Server:
    def __init__(self, folder):
        command = [sys.argv[1], "serve", "--data-dir", folder, "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "ULTTA_LOG": "off"})
        self.port = int(re.search(r"http://[^:]+:(\d+)|:(\d+)", self.process.stdout.readline()).group(0).rsplit(":", 1)[1])

    def megabytes(self, key):
        text = open(f"/proc/{self.process.pid}/status").read()
        return int(re.search(rf"{key}:\s+(\d+)", text).group(1)) // 1024

    def ask(self, method, path, body=None, kind="application/json"):
        body = json.dumps(body) if kind == "application/json" and body is not None else body
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, body, {"content-type": kind} if body is not None else {})
        answer = connection.getresponse()
        return answer.status, answer.read()

    def create(self, classes, dim, **settings):
        names = [f"a class whose name is not short {i}" for i in range(classes)]
        head = {"prototypes": list(unit_rows(classes, dim)), "classes": names, "logit_scale": 50.0}
        status, answer = self.ask("POST", "/v1/streams", {"name": "a", "head": head, **settings})
        assert status == 201, answer

    def send(self, request, body=b"", kind="application/json", more="", short=0):
        """A client that has sent all but the last bytes, and does not read."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", self.port))
        about = f"content-type: {kind}\r\ncontent-length: {len(body) + short}\r\n" if body else ""
        try:
            client.sendall(f"{request} HTTP/1.1\r\nhost: localhost\r\n{about}{more}\r\n".encode() + body)
        except OSError:
            pass  # It was refused before it had sent.
        return client

    def learn(self, dim):
        for _ in range(3):
            assert self.ask("POST", "/v1/streams/a/classify?normalize=true", npy(2000, dim), "application/x-npy")[0] == 200


def gone(server):
    server.create(1000, 256)
    yield
    body = npy(16_000, 256)
    for _ in range(200):
        client = server.send("POST /v1/streams/a/classify?normalize=true", body, "application/x-npy")
        time.sleep(0.03)
        client.close()


def shadow(server):
    server.create(1000, 256, method="zero-shot")
    assert server.ask("POST", "/v1/streams/a/clone", {"name": "b", "shadow": True, "method": "ul-tta"})[0] == 201
    yield
    body = npy(16_000, 256)
    for _ in range(60):
        assert server.ask("POST", "/v1/streams/a/classify?normalize=true", body, "application/x-npy")[0] == 200


def classes(server):
    server.create(20_000, 2)
    yield
    server.clients = [server.send("GET /v1/streams/a/classes") for _ in range(200)]
    time.sleep(15)


def lines(server):
    server.create(10, 16)
    yield
    body, more = b" " * ((59 << 20) - 1), "inference-header-content-length: 10\r\n"

    def begin():
        server.clients.append(server.send("POST /v2/models/a/infer", body, "application/x-ndjson", more, short=1))

    server.clients = []
    threads = [threading.Thread(target=begin) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(1)


def states(server):
    server.create(100, 4096)
    server.learn(4096)
    yield
    server.clients = [server.send("GET /v1/streams/a/state") for _ in range(30)]
    time.sleep(10)


def returns(server):
    server.create(100, 4096)
    server.learn(4096)
    assert server.ask("POST", "/v1/streams/a/snapshots", {"label": "x"})[0] == 201
    yield
    server.clients = [server.send("POST /v1/streams/a/rollback", b'{"label": "x"}') for _ in range(30)]
    time.sleep(10)


CASES = {"gone": gone, "shadow": shadow, "classes": classes, "lines": lines, "states": states, "returns": returns}
failed = False
for name in sys.argv[2:] or CASES:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder)
        try:
            steps = CASES[name](server)
            next(steps)
            before = server.megabytes("VmHWM")
            list(steps)
            status = server.ask("GET", "/healthz")[0]
            most = server.megabytes("VmHWM")
            fine = status == 200 and most - before <= MOST
            failed |= not fine
            print(f"{name}: {before} MB before, {most} at most{'' if fine else ', TOO MUCH'}", flush=True)
        finally:
            server.process.kill()
            server.process.wait()
sys.exit(failed)
