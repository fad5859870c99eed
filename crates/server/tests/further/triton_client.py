"""Asks the server with tritonclient, in text and in bytes: python triton_client.py URL FEATURES.npy"""

import sys

import numpy as np
import tritonclient.http as http

url, features = sys.argv[1].removeprefix("http://"), np.load(sys.argv[2])
client = http.InferenceServerClient(url)
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("default")
assert not client.is_model_ready("none")
model = client.get_model_metadata("default")
assert model["inputs"][0]["shape"] == [-1, features.shape[1]], model
seen = 0
for binary_in in [True, False]:
    for binary_out in [True, False]:
        rows = features[seen : seen + 8]
        tensor = http.InferInput("features", list(rows.shape), "FP32")
        tensor.set_data_from_numpy(rows, binary_data=binary_in)
        names = ["label", "class", "prob", "zero_shot_label", "id", "admitted"]
        wanted = [http.InferRequestedOutput(name, binary_data=binary_out) for name in names]
        answer = client.infer("default", [tensor], outputs=wanted, request_id="r1")
        assert answer.as_numpy("label").shape == (8,) and answer.as_numpy("prob").dtype == np.float32
        assert answer.as_numpy("id").tolist() == list(range(seen, seen + 8)), answer.as_numpy("id")
        assert len(set(answer.as_numpy("class").tolist())) >= 1
        assert answer.get_response()["id"] == "r1"
        seen += 8
tensor = http.InferInput("features", [1, 3], "FP32")
tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
try:
    client.infer("default", [tensor])
    raise SystemExit("a row of the wrong dimension was taken")
except http.InferenceServerException as refused:
    assert "feature dimension: expected 16, got 3" in str(refused), refused
print(f"tritonclient: {seen} rows in 4 ways")
