"""A detector behind FastAPI, as its documentation writes a server: the model is loaded in the lifespan ("Lifespan
Events"), a file comes in as an `UploadFile` ("Request Files"), a path operation that blocks is a plain `def` and runs
in the thread pool ("Concurrency and async / await"), and Uvicorn starts several processes to use several cores ("Server
Workers").

    python fastapi_server.py MODEL PORT --workers 2
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from detector import Detector, decode
from fastapi import FastAPI, UploadFile

models: dict[str, Detector] = {}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    models["detector"] = Detector(os.environ["MODEL"], int(os.environ["THREADS"]))
    yield
    models.clear()


app = FastAPI(lifespan=lifespan)


@app.get("/health")
def health() -> str:
    return "ok"


@app.post("/predict")
def predict(file: UploadFile) -> dict[str, Any]:
    (found,) = models["detector"]([decode(file.file.read())])
    return {"results": found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("port", type=int)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--threads", default="0", help="of a run of the network; 0 is one for each processor")
    given = parser.parse_args()
    os.environ["MODEL"], os.environ["THREADS"] = given.model, given.threads
    uvicorn.run("fastapi_server:app", port=given.port, workers=given.workers, log_level="error")
