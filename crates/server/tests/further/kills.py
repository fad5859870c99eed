"""`kill -9` at random moments amid everything: python3 kills.py ULTTA [KILLS]

As the test `killed_at_random_amid_everything_it_is_what_an_uninterrupted_run_is`, but against a program that is there, such as a release
build, and beside a server that is never killed: whatever the killed server has taken is asked of that one, too. Rows, labels, corrections,
freezing, snapshots, returns to them, resets, compaction and a shadow; `interval` and `sync` in turns. After each kill both streams must be
byte for byte those of the other server, and healthy.
"""

import http.client
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CLASSES, DIM, ROWS = 12, 16, 3000
rng = random.Random(17)


def unit_rows(count):
    for _ in range(count):
        row = [rng.gauss(0, 1) for _ in range(DIM)]
        norm = sum(v * v for v in row) ** 0.5
        yield [v / norm for v in row]


rows = list(unit_rows(ROWS))
HEAD = {"prototypes": list(unit_rows(CLASSES)), "classes": [f"c{i}" for i in range(CLASSES)], "logit_scale": 100.0}


def npy(first, count):
    values = [value for i in range(first, first + count) for value in rows[i % ROWS]]
    header = str({"descr": "<f4", "fortran_order": False, "shape": (count, DIM)}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack(f"<{len(values)}f", *values)


class Server:
    def __init__(self, program, folder, durability="interval"):
        folder.mkdir(exist_ok=True)
        (folder / "ultta.toml").write_text("[server]\ncompact_bytes = 65536\n")
        command = [program, "serve", "--data-dir", folder / "data", "--port", "0", "--config", folder / "ultta.toml", "--durability", durability]
        self.log = folder / "log"
        with open(folder / "address", "w") as out, open(self.log, "a") as log:
            self.process = subprocess.Popen(command, stdout=out, stderr=log, env=dict(os.environ, ULTTA_LOG="warn"))
        while not (told := re.search(r"listening on (\S+):(\d+)\n", (folder / "address").read_text())):
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        self.address = (told[1], int(told[2]))

    def ask(self, method, path, body=None, kind="application/json"):
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body)
        connection.request(method, path, body, {"content-type": kind} if body is not None else {})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    def json(self, path):
        return json.loads(self.ask("GET", path)[1])

    def state(self, stream="default"):
        status, content = self.ask("GET", f"/v1/streams/{stream}/state")
        assert status == 200, content
        return content

    def kill(self):
        self.process.kill()
        self.process.wait()


class Run:
    """What has been taken so far, and the server that is never killed."""

    def __init__(self, reference):
        self.reference = reference
        self.row = self.generation = self.next_id = 0
        self.learning, self.snapshot, self.corrected = True, None, []

    def send(self, server, ask, stream="default"):
        what, *values = ask
        path, of_shadow = f"/v1/streams/{stream}", stream == "shade"
        generation = 0 if of_shadow else self.generation
        if what == "rows":
            asked = server.ask("POST", f"{path}/classify", npy(*values), "application/octet-stream")
        elif what == "label":
            label = {"id": values[1 if of_shadow else 0], "label": values[2]}
            asked = server.ask("POST", f"{path}/feedback", {"labels": [label], "generation": generation})
        elif what == "correct":
            label = {"id": values[0]} | ({"withdraw": True} if values[1] is None else {"label": values[1]})
            asked = server.ask("POST", f"{path}/correct", {"labels": [label], "generation": generation})
        elif what in ("snapshots", "rollback"):
            asked = server.ask("POST", f"{path}/{what}", {"label": values[0]})
        else:
            asked = server.ask("POST", f"{path}/{what}", {})
        assert asked[0] in (200, 201), (ask, asked)
        return json.loads(asked[1])

    def take(self, ask):
        self.send(self.reference, ask)
        what, *values = ask
        if what == "rows":
            self.row += values[1]
            self.next_id += values[1]
        elif what == "reset":
            self.generation, self.next_id, self.corrected = self.generation + 1, 0, []
        elif what in ("freeze", "unfreeze"):
            self.learning = what == "unfreeze"
        elif what == "snapshots":
            self.snapshot = (values[0], self.next_id, list(self.corrected))
        elif what == "rollback":
            self.generation += 1
            _, self.next_id, corrected = self.snapshot
            self.corrected = list(corrected)
        elif what == "correct" and values[1] is None:
            self.corrected.remove(values[0])
        elif what == "correct" and values[0] not in self.corrected:
            self.corrected.append(values[0])

    def next_ask(self, shown, number):
        die = rng.randrange(40)
        if die < 6 and shown:
            return ("label", *rng.choice(shown), rng.randrange(CLASSES))
        if die == 6:
            return ("freeze",) if self.learning else ("unfreeze",)
        if die == 7:
            return "snapshots", f"s{number}"
        if die == 8 and self.snapshot:
            return "rollback", self.snapshot[0]
        if die in (9, 10) and shown:
            return "correct", rng.choice(shown)[0], rng.randrange(CLASSES)
        if die == 11 and self.corrected:
            return "correct", self.corrected[0], None
        if die == 12 and rng.randrange(10) == 0:
            return ("reset",)
        return "rows", self.row, rng.randrange(1, 61)

    def is_at(self, view, state):
        status = view["status"]
        return (status["generation"], status["learning"]) == (self.generation, self.learning) and state == self.reference.state()


def main(program, kills, folder):
    run = Run(Server(program, folder / "reference"))
    server = Server(program, folder / "killed")
    for each, names in ((run.reference, ["default", "shade"]), (server, ["default"])):
        for name in names:
            assert each.ask("POST", "/v1/streams", {"name": name, "head": HEAD})[0] == 201
    assert server.ask("POST", "/v1/streams/default/clone", {"name": "shade", "shadow": True})[0] == 201
    counts, number, shadow_id, in_doubt, from_base = {}, 1, 0, 0, 0
    for kill in range(kills):
        killer = threading.Timer(rng.uniform(0.01, 0.51), server.process.kill)
        killer.start()
        # What the shadow is shown, and the samples that labels may be for, by their ids in both streams.
        jobs, shown, own_id = [], [], shadow_id
        while True:
            ask = run.next_ask(shown, number)
            number += ask[0] == "snapshots"
            if ask[0] in ("rows", "label"):
                jobs.append(ask)
            try:
                answer = run.send(server, ask)
            except (OSError, http.client.HTTPException):
                break
            if ask[0] == "rows":
                assert answer["rows"][0]["id"] == run.next_id, (kill, ask)
                shown += [(run.next_id + i, own_id + i) for i in range(ask[2])]
                own_id += ask[2]
            elif ask[0] in ("rollback", "reset"):
                shown = []
            counts[ask[0]] = counts.get(ask[0], 0) + (ask[2] if ask[0] == "rows" else 1)
            counts["requests"] = counts.get("requests", 0) + 1
            run.take(ask)
        killer.join()
        server.kill()
        server = Server(program, folder / "killed", ["interval", "sync"][kill % 2])
        health = server.json("/healthz")
        assert health["status"] == "ok", (kill, health)
        view, state = server.json("/v1/streams/default"), server.state()
        # The request that was not answered has been taken whole, or not at all.
        if not run.is_at(view, state):
            in_doubt += 1
            run.take(ask)
            assert run.is_at(view, state), f"kill {kill}: another state after {ask}"
        elif ask[0] == "snapshots" and f'"{ask[1]}"' in json.dumps(server.json("/v1/streams/default/snapshots")):
            run.take(ask)
        from_base += view["recovered_records"] < view["status"]["log_next"]
        for old in range(max(1, number - 20), max(1, number - 4)):
            if run.snapshot and run.snapshot[0] != f"s{old}":
                for each in (server, run.reference):
                    each.ask("DELETE", f"/v1/streams/default/snapshots/s{old}")
        # The shadow has taken the first of what it was shown, in order.
        state = server.state("shade")
        while run.reference.state("shade") != state:
            assert jobs, f"kill {kill}: the shadow is in no state that it was shown"
            job = jobs.pop(0)
            run.send(run.reference, job, "shade")
            shadow_id += job[2] if job[0] == "rows" else 0
        assert "panicked" not in server.log.read_text(), server.log
        if kill % 20 == 19:
            print(f"{kill + 1} kills: {counts}", flush=True)
    assert server.state() == run.reference.state(), "the final state"
    server.kill()
    run.reference.kill()
    print(f"{kills} kills, byte for byte: {counts}; {in_doubt} requests taken and not answered, {from_base} starts from a base")


with tempfile.TemporaryDirectory() as scratch:
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200, Path(scratch))
