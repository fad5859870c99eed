"""What schemathesis sends, made to reach the calls, and what it was answered: hooks, named by SCHEMATHESIS_HOOKS.

Drawn names are of streams that are not there, and drawn bodies seldom fit a head, so nearly every case would end at the first
question that a call asks. Of five cases four go to a stream that is there, and one keeps the name as drawn. Of three bodies one is made to fit
(rows of the right length, a picture, a label that is kept; its other fields stay as drawn). Of 24 cases two have no token and one
has a token that only reads. What a case made is removed again, so that bounds are not reached.

    python schema_cases.py COUNTS.json OPENAPI.json EXAMPLES [PATHS, a regular expression]

prints what each call was answered and fails if a call was reached by fewer than EXAMPLES cases (calls without parameters: by one), or never
answered with success.
"""

import atexit
import base64
import json
import os
import random
import re
import struct
import sys
import urllib.error
import urllib.request
from collections import Counter, defaultdict

URL = os.environ.get("SCHEMA_URL", "")
ADMIN, READ = os.environ.get("ULTTA_TOKEN_ADMIN", ""), os.environ.get("ULTTA_TOKEN_READ", "")
rng = random.Random(1)
sent, reached, statuses = Counter(), Counter(), defaultdict(Counter)


def ask(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {ADMIN}", "content-type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers, method=method), timeout=30) as answer:
            return answer.read()
    except urllib.error.HTTPError as e:
        return e.read()


def row(dim):
    values = [rng.gauss(0, 1) for _ in range(dim)]
    norm = sum(v * v for v in values) ** 0.5
    return [v / norm for v in values]


def fitted(case, call, dim, picture):
    """The body of a case, with what must fit made to fit."""
    body = dict(case.body) if isinstance(case.body, dict) else {}
    rows = [row(dim) for _ in range(rng.randrange(1, 4))]
    end = call.rsplit("/", 1)[-1]
    if end == "infer":
        return body | {"inputs": [{"name": "features", "shape": [len(rows), dim], "datatype": "FP32", "data": rows}]}
    if "/pictures" in call:
        if case.media_type == "application/json":
            return {k: v for k, v in body.items() if k in ("top", "probs", "prob_pred")} | {"pictures": [base64.b64encode(picture).decode()]}
        return picture if case.media_type != "multipart/form-data" else {"pictures": [picture]}
    if end in ("classify", "predict"):
        if case.media_type == "application/x-ndjson":
            return "".join(json.dumps(each) + "\n" for each in rows)
        if case.media_type == "application/octet-stream":
            header = str({"descr": "<f4", "fortran_order": False, "shape": (len(rows), dim)}).encode() + b"\n"
            values = [value for each in rows for value in each]
            return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack(f"<{len(values)}f", *values)
        return {k: v for k, v in body.items() if k in ("top", "probs", "prob_pred", "normalize")} | {"features": rows, "refs": [rng.choice([each, f"row {each}"]) for each in range(len(rows))]}
    if end == "merge":
        return {"stream": "second"} if case.media_type == "application/json" else ask("GET", "/v1/streams/default/state")
    labels = [{"id": rng.randrange(20), "label": rng.randrange(4)}]
    return {
        "streams": {"name": f"made-{sent[call]}", "head_of": "default"},
        "clone": body | {"name": f"made-{sent[call]}", "method": None, "preset": None, "config": None, "settings": None},
        "feedback": {"labels": labels, "generation": generation()},
        "correct": {"labels": labels, "generation": generation()},
        "explain": {"features": rows[0], "best": body.get("best") if isinstance(body.get("best"), int) else None},
        "snapshots": {"label": f"made-{sent[call]}"},
        "rollback": {"label": "kept"},
        "drop": {"member": "second"},
    }.get(end, case.body)


def generation():
    return json.loads(ask("GET", "/v1/streams/default"))["status"]["generation"]


def hooks():
    import schemathesis

    with open(os.environ["SCHEMA_PICTURE"], "rb") as file:
        picture = file.read()
    dim = json.loads(ask("GET", "/v1/streams/default"))["dim"]

    @schemathesis.serializer("application/x-ndjson")
    def lines(context, value):
        return value.encode() if isinstance(value, str) else json.dumps(value).encode()

    @schemathesis.hook
    def before_call(context, case, kwargs):
        call = case.operation.label
        number = sent[call]
        sent[call] += 1
        names = case.path_parameters or {}
        drawn = number % 5 == 4
        if not drawn:
            there = {"stream": "default", "group": "cameras", "version": "1"}
            names.update({key: there[key] for key in names if key in there})
            if call == "DELETE /v1/streams/{stream}":
                ask("POST", "/v1/streams/default/clone", {"name": "spare"})
                names["stream"] = "spare"
            if call == "DELETE /v1/streams/{stream}/snapshots/{label}":
                ask("POST", "/v1/streams/default/snapshots", {"label": "spare"})
                names["label"] = "spare"
            elif "label" in names and number % 3 == 0:
                names["label"] = rng.randrange(4)
        if case.media_type and number % 3 == 0:
            case.body = fitted(case, call, dim, picture)
        token = {9: READ, 11: None, 23: None}.get(number % 24, ADMIN)
        headers = case.headers
        if headers is not None:
            for key in [key for key in headers if key.lower() == "authorization"]:
                del headers[key]
            if token:
                headers["Authorization"] = f"Bearer {token}"
        own_method = case.method.upper() == call.split()[0]
        reached[call] += own_method and not drawn and token == ADMIN

    @schemathesis.hook
    def after_call(context, case, response):
        statuses[case.operation.label][response.status_code] += 1
        if response.status_code == 201:
            made = json.loads(response.content)
            if "label" in made and made["label"] != "kept":
                ask("DELETE", f"/v1/streams/default/snapshots/{made['label']}")
            if "name" in made:
                ask("DELETE", f"/v1/streams/{made['name']}")

    @atexit.register
    def keep():
        with open(os.environ["SCHEMA_COUNTS"], "w") as file:
            json.dump({call: {"reached": reached[call], "statuses": statuses[call]} for call in sent}, file)


def judge(counts, document, examples, paths="."):
    counts, document = json.load(open(counts)), json.load(open(document))
    problems = []
    for path, methods in document["paths"].items():
        if not re.search(paths, path):
            continue
        for method, operation in methods.items():
            call = f"{method.upper()} {path}"
            found = counts.get(call, {"reached": 0, "statuses": {}})
            told = ", ".join(f"{status} {n}" for status, n in sorted(found["statuses"].items()))
            print(f"{call}: {found['reached']} reached it of {sum(found['statuses'].values())}: {told}")
            needed = examples if operation.get("parameters") or operation.get("requestBody") else 1
            if found["reached"] < needed:
                problems.append(f"{call}: reached by {found['reached']} cases, expected {needed}")
            if not any(status.startswith("2") for status in found["statuses"]):
                problems.append(f"{call}: never answered with success")
    total = sum(sum(found["statuses"].values()) for found in counts.values())
    print(f"{len(counts)} calls, {total} cases, {sum(found['reached'] for found in counts.values())} reached their call")
    sys.exit("\n".join(problems) or None)


if __name__ == "__main__":
    judge(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
else:
    hooks()
