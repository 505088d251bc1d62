"""A detector behind LitServe, as its documentation writes a server: an API with `setup()`, `decode_request()`,
`predict()` and `encode_response()`, batches of requests with a short `batch_timeout` ("Batching"), and
`workers_per_device` copies of it ("Speed up serving").

    python litserve_server.py MODEL PORT --workers 2 --batch 8
"""

import argparse  # without annotations as strings: LitServe looks at the type of decode_request()'s argument
from typing import Any

import litserve
import numpy as np
import numpy.typing as npt
from detector import Detector, decode
from fastapi import Request

PARSER = argparse.ArgumentParser()
PARSER.add_argument("model")
PARSER.add_argument("port", type=int)
PARSER.add_argument("--workers", type=int, default=1, help="processes")
PARSER.add_argument("--batch", type=int, default=1, help="the most images in a run")
PARSER.add_argument("--threads", type=int, default=0, help="of a run of the network; 0 is one for each processor")
GIVEN = PARSER.parse_args()  # here: the processes that LitServe starts read it, too


class DetectorAPI(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.model = Detector(GIVEN.model, GIVEN.threads)

    def decode_request(self, request: Request) -> npt.NDArray[np.uint8]:
        return decode(request["file"].file.read())

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs  # images of several sizes are no array

    def predict(self, images: Any) -> Any:
        return self.model(images) if GIVEN.batch > 1 else self.model([images])[0]

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {"results": output}


if __name__ == "__main__":
    timeout = 0.01 if GIVEN.batch > 1 else 0.0
    api = DetectorAPI(max_batch_size=GIVEN.batch, batch_timeout=timeout)
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=GIVEN.workers,
        timeout=300,  # so that a busy machine answers late; the default is 30 s
    )
    server.run(port=GIVEN.port, log_level="error", generate_client_file=False)
