# The stream {stream} at {url} {expects}.
import io
import json
import os
import urllib.request

import numpy as np


def post(call, body, kind="application/json"):
    data = body if kind != "application/json" else json.dumps(body).encode()
    headers = {"content-type": kind, "authorization": "Bearer " + os.environ.get("ULTTA_TOKEN", "")}
    request = urllib.request.Request("{url}/v1/streams/{stream}/" + call, data, headers)
    return json.load(urllib.request.urlopen(request))


# Random rows stand in for the features of your pictures here.
features = np.random.default_rng(0).normal(size=(8, {dim})).astype(np.float32)
features /= np.linalg.norm(features, axis=1, keepdims=True)

# Answer rows, as one binary body. `predict` learns nothing from them: random rows must not teach a live stream.
# With rows of your pictures call `classify`, which answers and learns.
body = io.BytesIO()
np.save(body, features)
answers = post("predict", body.getvalue(), "application/octet-stream")
for row in answers["rows"]:
    print(row["class"], round(row["prob"], 3), "zero-shot:", row["zero_shot"]["class"])

# A label that became known later, for a row that `classify` answered:
# post("feedback", {"labels": [{"id": answers["rows"][0]["id"], "label": 1}], "generation": answers["generation"]})
