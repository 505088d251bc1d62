"""FastAPI around a wrapper of infersdk, which serves one thread at a time.

python fastapi_wrapper.py MODEL PORT BACKEND [DEVICE]
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import uvicorn
from fastapi import FastAPI, UploadFile

from infersdk.models import YOLOv5

MODEL, PORT, BACKEND, DEVICE = [*sys.argv[1:], ""][:4]
detector, lock = YOLOv5(MODEL, backend=BACKEND, device=DEVICE or None), threading.Lock()
app = FastAPI()


@app.get("/health")
def health() -> str:
    return "ok"


@app.post("/predict")
def predict(file: UploadFile) -> dict[str, Any]:
    data = file.file.read()
    with lock:
        return {"results": detector(data).to_dicts()}


if __name__ == "__main__":
    uvicorn.run(app, port=int(PORT), log_level="error")
