#!/usr/bin/env python3
"""Streams of one group behind a balancer: created, taught, and told apart by nothing but their names.

    python3 deploy/fleet/check.py BALANCER SERVER [SERVER …]

Ends with 0 once every server with a stream knows what all streams gave. Needs Python's standard library only.
"""

import json
import math
import random
import sys
import time
import urllib.request

STREAMS = [f"cam-{i}" for i in range(12)]
ROUNDS, ROWS = 5, 40


def call(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def unit(row):
    length = math.sqrt(sum(v * v for v in row))
    return [v / length for v in row]


def main(balancer, *servers):
    random.seed(1)
    dim = 16
    classes = [unit([random.gauss(0, 1) for _ in range(dim)]) for _ in range(6)]
    head = {"prototypes": classes, "classes": [f"class {c}" for c in range(6)], "logit_scale": 20.0}
    for stream in STREAMS:
        call(f"{balancer}/v1/streams?stream={stream}", {"name": stream, "head": head, "group": "all"})
    for _ in range(ROUNDS):
        for stream in STREAMS:
            rows = [unit([v + random.gauss(0, 0.3) for v in random.choice(classes)]) for _ in range(ROWS)]
            call(f"{balancer}/v1/streams/{stream}/classify", {"features": rows})
    patience = time.time() + 60
    while time.time() < patience:
        views = [call(f"{server}/v1/groups/all") for server in servers if call(f"{server}/v1/groups")["groups"]]
        own = [member for view in views for member in view["own"]]
        clocks = {member["clock"] for member in own}
        # Every stream is on one server. Near-copies do not teach, so a few rows may be missing.
        everyone = sorted(member["stream"] for member in own) == sorted(STREAMS)
        everything = len(clocks) == 1 and max(clocks) > 0.9 * len(STREAMS) * ROUNDS * ROWS
        if everyone and everything and all(member["waiting"] == 0 for member in own):
            print(f"{len(views)} servers, {len(own)} streams, {clocks.pop():.0f} samples known to all")
            return 0
        time.sleep(0.5)
    print(json.dumps(views, indent=1))
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
