#!/usr/bin/env python3
"""Three servers that share over a real broker, on the rows of packs: top-1 of each beside one server that is sent every row in the same
order, and beside three that do not share.

    cargo build --release --features nats
    python3 crates/server/tests/fleet_pack.py --ultta target/release/ultta FOLDER [FOLDER …]

A folder holds `features.safetensors` (with labels) and `head.safetensors`. Every server is sent 30 rows, then all wait until each knows what the
others gave, or for a while (`--wait`, seconds). Ends with 1 if a pack's servers that share are, on average, more than 0.3 points below the one
that sees everything, or not above those that do not share. Needs what fleet.py needs.
"""

import argparse
import json
import os
import pathlib
import random
import struct
import sys
import tempfile
import time
import urllib.request

from fleet import Process, find_broker, free_port, values

MEMBERS, ROWS, WITHIN = 3, 30, 0.3


class Server(Process):
    def __init__(self, ultta, folder, name, head, broker=None):
        port = free_port()
        command = [ultta, "serve", "--head", str(head), "--data-dir", str(folder / name), "--port", str(port)]
        if broker:
            config = folder / f"{name}.toml"
            config.write_text("[server.share]\nseconds = 0.1\nsamples = 1\n")
            command += ["--config", str(config), "--group", "all", "--share", f"nats://127.0.0.1:{broker}", "--member", name]
        super().__init__(command, port)

    def call(self, path, data=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"content-type": "application/octet-stream"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def labels(self, rows):
        body = b"".join(rows)
        shape = [len(rows), len(rows[0]) // 4]
        header = json.dumps({"features": {"dtype": "F32", "shape": shape, "data_offsets": [0, len(body)]}}).encode()
        header += b" " * (-len(header) % 8)
        answer = self.call("/v1/streams/default/classify", struct.pack("<Q", len(header)) + header + body)
        return [row["label"] for row in answer["rows"]]


def read(folder):
    """Rows as bytes of 32-bit numbers, and their labels."""
    data = (folder / "features.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    rows, dim = json.loads(data[8 : 8 + length])["features"]["shape"]
    found = values(data)
    flat = found["features"]
    return [struct.pack(f"<{dim}f", *flat[i * dim : (i + 1) * dim]) for i in range(rows)], list(found["labels"])


def knows_all(servers):
    views = [server.call("/v1/groups/all") for server in servers]
    clocks = {own["clock"] for view in views for own in view["own"]}
    return len(clocks) == 1 and all(own["waiting"] == 0 for view in views for own in view["own"])


def play(args, pack, seed, folder, program):
    """Shares of right answers: of each server that shares, of each apart, and of the one machine on the same rows."""
    rows, labels = read(pack)
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    head, port = pack / "head.safetensors", free_port()
    processes = [Process([program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / f"broker-{seed}")], port)]
    try:
        sharing = [Server(args.ultta, folder, f"box-{seed}-{i}", head, port) for i in range(MEMBERS)]
        processes += sharing
        apart = [Server(args.ultta, folder, f"apart-{seed}-{i}", head) for i in range(MEMBERS)]
        processes += apart
        one = Server(args.ultta, folder, f"one-{seed}", head)
        processes.append(one)
        right = {"sharing": [0] * MEMBERS, "apart": [0] * MEMBERS, "one": [0] * MEMBERS}
        for start in range(0, len(order), MEMBERS * ROWS):
            part = order[start : start + MEMBERS * ROWS]
            for i, (row, label) in enumerate(zip(part, one.labels([rows[row] for row in part]))):
                right["one"][i % MEMBERS] += label == labels[row]
            for kind, servers in (("sharing", sharing), ("apart", apart)):
                for who, server in enumerate(servers):
                    own = part[who::MEMBERS]
                    if own:
                        found = server.labels([rows[row] for row in own])
                        right[kind][who] += sum(label == labels[row] for row, label in zip(own, found))
            patience = time.time() + args.wait
            while time.time() < patience and not knows_all(sharing):
                time.sleep(0.02)
        counts = [len(order[who::MEMBERS]) for who in range(MEMBERS)]
        return {kind: [100.0 * n / count for n, count in zip(found, counts)] for kind, found in right.items()}
    finally:
        for process in processes[::-1]:
            process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--ultta", default="target/release/ultta")
    parser.add_argument("--broker")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--wait", type=float, default=2.0)
    args = parser.parse_args()
    args.ultta = os.path.abspath(args.ultta)
    beyond = []
    print("| pack | apart | sharing | one machine | each that shares − one machine on its rows |\n|---|---|---|---|---|")
    for pack in args.folders:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            program = find_broker(args.broker, folder)
            runs = [play(args, pack, seed, folder, program) for seed in range(args.seeds)]
        mean = {kind: [sum(run[kind][who] for run in runs) / len(runs) for who in range(MEMBERS)] for kind in runs[0]}
        apart, sharing, one = (sum(mean[kind]) / MEMBERS for kind in ("apart", "sharing", "one"))
        each = ", ".join(f"{a - b:+.2f}" for a, b in zip(mean["sharing"], mean["one"]))
        print(f"| {pack} | {apart:.2f} | {sharing:.2f} | {one:.2f} | {each} |", flush=True)
        if sharing < one - WITHIN or sharing <= apart:
            beyond.append(f"{pack}: sharing {sharing:.2f}, one machine {one:.2f}, apart {apart:.2f}")
    if beyond:
        sys.exit("; ".join(beyond))


if __name__ == "__main__":
    main()
