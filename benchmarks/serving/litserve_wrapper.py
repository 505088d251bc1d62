"""LitServe around a wrapper of infersdk, in batches of up to 8.

python litserve_wrapper.py MODEL PORT BACKEND [DEVICE]
"""

import sys  # without annotations as strings: LitServe looks at the type of decode_request()'s argument
from typing import Any

import litserve
from fastapi import Request

from infersdk.models import YOLOv5

MODEL, PORT, BACKEND, DEVICE = [*sys.argv[1:], ""][:4]


class DetectorAPI(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.model = YOLOv5(MODEL, backend=BACKEND, device=DEVICE or None, max_batch=8)

    def decode_request(self, request: Request) -> bytes:
        data: bytes = request["file"].file.read()
        return data

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        return list(inputs)

    def predict(self, images: list[bytes]) -> list[Any]:
        return [found.to_dicts() for found in self.model(images)]

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"results": output}


if __name__ == "__main__":
    server = litserve.LitServer(DetectorAPI(max_batch_size=8, batch_timeout=0.005), accelerator="cpu", timeout=300)
    server.run(port=int(PORT), log_level="error", generate_client_file=False)
