"""The operator of hard_swish.py with kernels in C and CUDA, which are compiled on first use.

python hard_swish.py writes the model; python hard_swish_native.py runs it on each installed backend.
"""

from pathlib import Path

import numpy as np

import infersdk
from infersdk.custom_ops import CSource, CudaSource, CustomOp, Launch

HERE = Path(__file__).resolve().parent


class HardSwish(CustomOp):
    domain = "my.company"
    inputs = {"x": "T"}
    outputs = {"y": "T"}
    types = {"T": ("float32",)}
    alpha: float = 1 / 6
    cpu = CSource(HERE / "hard_swish_native.c", "hard_swish")
    cuda = CudaSource(
        HERE / "hard_swish_native.cu",
        function="hard_swish",
        launch=lambda op, x, y: Launch(threads=y.size, arguments=(x, y, y.size, op.alpha)),
    )

    def shape(self, x):
        return x


if __name__ == "__main__":
    x = np.linspace(-4, 4, 32, dtype="float32").reshape(4, 8)
    want = np.maximum(x, 0) * np.clip(0.2 * np.maximum(x, 0) + 0.5, 0, 1)
    for backend in infersdk.list_backends():
        try:
            with infersdk.load("hard_swish.onnx", backend, custom_ops=[HardSwish]) as infer:
                (y,) = infer(x).values()
                print(backend, "on", infer.device, "differs from NumPy by", np.abs(y - want).max())
        except infersdk.errors.BackendError as error:
            print(backend, "is not available:", error)
