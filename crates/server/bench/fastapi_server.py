"""The comparison: zero-shot over HTTP with FastAPI and NumPy. One process, as `ultta serve` is one.

    uvicorn fastapi_server:app --port 8091
"""

import os

import numpy as np
from fastapi import FastAPI, Request
from pydantic import BaseModel

head = np.load(os.environ["HEAD_NPY"]).astype(np.float32)
names = [f"class {i}" for i in range(len(head))]
scale = np.float32(100.0)
app = FastAPI()


class Rows(BaseModel):
    features: list[list[float]]


def answer(features):
    logits = scale * (features @ head.T)
    logits -= logits.max(axis=1, keepdims=True)
    probs = np.exp(logits)
    probs /= probs.sum(axis=1, keepdims=True)
    labels = probs.argmax(axis=1)
    return {"rows": [{"label": int(c), "class": names[c], "prob": float(p[c])} for c, p in zip(labels, probs)]}


@app.post("/classify")
async def classify(rows: Rows):
    return answer(np.asarray(rows.features, dtype=np.float32))


@app.post("/binary")
async def binary(request: Request):
    body = await request.body()
    return answer(np.frombuffer(body, dtype=np.float32).reshape(-1, head.shape[1]))
