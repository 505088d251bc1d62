"""Custom operators on an NVIDIA GPU: as nodes of ONNX Runtime, and between engines of a model that is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxes_in_models import check_rows, decoded, detector, head_output
from custom_operators import C_SOURCE, DOMAIN, HSwish, node, save_model, swish, swish_model
from waiting import together

import infersdk
from infersdk.custom_ops import CFunction, CSource, CudaSource, CustomOp, Launch
from infersdk.custom_ops.detection_nms import AddDetectionNms
from infersdk.errors import CustomOpError
from infersdk.graph.files import read_model, write_model

pytestmark = pytest.mark.gpu

CODE = r"""
extern "C" __global__ void hard_swish(const T *x, T *y, long long count, float alpha, float beta) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < count) {
        float v = (float)x[i];
        y[i] = (T)(v * fminf(fmaxf(alpha * v + beta, 0.f), 1.f));
    }
}
"""

LAUNCHER = r"""
#include "infersdk_custom_op.h"
#include <cuda_runtime.h>
static __global__ void scale(const float *x, float *y, int64_t n, float a, float b) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * fminf(fmaxf(a * x[i] + b, 0.f), 1.f);
}
extern "C" int32_t hard_swish_launch(const ifs_op_call *call) {
    int64_t n = ifs_op_count(&call->inputs[0]);
    if (n == 0) return 0;
    scale<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)call->stream>>>(
        (const float *)call->inputs[0].data, (float *)call->outputs[0].data, n, call->attributes[0].f,
        call->attributes[1].f);
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? 0 : IFS_OP_FAIL(call, "%s", cudaGetErrorString(error));
}
"""


class OnGpu(CustomOp):
    """HSwish by device code that is compiled here."""

    domain = DOMAIN
    name = "HSwish"
    inputs = {"x": "T"}
    outputs = {"y": "T"}
    types = {"T": ("float32", "float16")}
    alpha: float = 1 / 6
    beta: float = 0.5
    cuda = CudaSource(
        CODE,
        function="hard_swish",
        launch=lambda op, x, y: Launch(threads=y.size, arguments=(x, y, y.size, op.alpha, op.beta)),
    )

    def shape(self, x: Any) -> Any:
        return x


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> type[CustomOp]:
    """The same by a launcher in a library, built by nvcc ahead."""
    import subprocess

    from infersdk.custom_ops import include_folder
    from infersdk.custom_ops.compiling import nvcc_path

    if nvcc_path() is None:
        pytest.skip("needs nvcc")
    folder = tmp_path_factory.mktemp("launcher")
    (folder / "op.cu").write_text(LAUNCHER)
    library = folder / "libop.so"
    subprocess.run(
        [str(nvcc_path()), "-shared", "-Xcompiler=-fPIC", f"-I{include_folder()}", "-o", str(library),
         str(folder / "op.cu")],
        check=True,
    )  # fmt: skip
    body = {
        "name": "HSwish", "cuda": CFunction(library, "hard_swish_launch"), "cpu": CSource(C_SOURCE, "hard_swish"),
        "types": {"T": ("float32",)},
    }  # fmt: skip
    return type("HSwish", (HSwish,), body)


BACKENDS = [
    ("onnxruntime", {}), ("onnxruntime", {"cut_custom_ops": True}),
    ("tensorrt", {}), ("tensorrt", {"cuda_graph": True}),
    ("tensorrt-rtx", {}), ("tensorrt-rtx", {"cuda_graph": True}),
]  # fmt: skip


@pytest.fixture(params=BACKENDS, ids=lambda p: "-".join([p[0], *p[1]]))
def how(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    pytest.importorskip({"tensorrt-rtx": "tensorrt_rtx_bindings"}.get(request.param[0], request.param[0]))
    backend, options = request.param
    if (
        backend == "onnxruntime"
        and "cuda" not in infersdk.loading.registry.backend_class(backend).declaration.probe().devices
    ):
        pytest.skip("this ONNX Runtime has no CUDA provider")
    return backend, dict(options)


def batch(rows: int, seed: int = 0, dtype: str = "float32") -> Any:
    return (4 * np.random.default_rng(seed).standard_normal((rows, 8))).astype(dtype)


def test_device_code(tmp_path: Path, how: tuple[str, dict[str, Any]]) -> None:
    backend, options = how
    path = swish_model(tmp_path / "m.onnx", OnGpu, alpha=0.25)
    with infersdk.load(path, backend, device="cuda:0", max_batch=8, custom_ops=[OnGpu], **options) as infer:
        for rows in (1, 8, 3, 3, 3, 8):  # graphs are captured, replayed and left
            for seed in range(3):
                np.testing.assert_allclose(infer(batch(rows, seed))["y"], swish(batch(rows, seed), 0.25), atol=1e-5)


def test_a_launcher(tmp_path: Path, how: tuple[str, dict[str, Any]], launcher: type[CustomOp]) -> None:
    backend, options = how
    path = swish_model(tmp_path / "m.onnx", launcher)
    with infersdk.load(path, backend, device="cuda:0", max_batch=8, custom_ops=[launcher], **options) as infer:
        for rows in (2, 2, 2, 5):
            np.testing.assert_allclose(infer(batch(rows))["y"], swish(batch(rows)), atol=1e-5)


def test_float16(tmp_path: Path, how: tuple[str, dict[str, Any]]) -> None:
    backend, options = how
    path = swish_model(tmp_path / "m.onnx", OnGpu, "float16")
    with infersdk.load(path, backend, device="cuda:0", max_batch=8, custom_ops=[OnGpu], **options) as infer:
        x = batch(3, dtype="float16")
        np.testing.assert_allclose(infer(x)["y"], swish(x.astype("float32")), rtol=4e-3, atol=4e-3)


def test_clones_in_threads(tmp_path: Path, how: tuple[str, dict[str, Any]]) -> None:
    backend, options = how
    path = swish_model(tmp_path / "m.onnx", OnGpu)

    def work(infer: Any, seed: int) -> None:
        for _ in range(50):
            np.testing.assert_allclose(infer(batch(4, seed))["y"], swish(batch(4, seed)), atol=1e-5)

    with infersdk.load(path, backend, device="cuda:0", max_batch=8, custom_ops=[OnGpu], **options) as infer:
        clones = [infer.clone() for _ in range(4)]
        together(work, zip(clones, range(4), strict=True))
        for clone in clones:
            clone.close()


def test_branches_around_several_nodes(tmp_path: Path, how: tuple[str, dict[str, Any]]) -> None:
    from onnx_models import node as plain

    backend, options = how
    nodes = [
        plain("Relu", "x", "a"), plain("Neg", "a", "around"), node(OnGpu, ["a"], ["b"], "one"),
        node(OnGpu, ["around"], ["c"], "two", alpha=0.3), plain("Add", "b c", "d"), plain("Add", "d around", "y"),
    ]  # fmt: skip
    path = save_model(tmp_path / "m.onnx", nodes, {"x": ("float32", ["n", 8])}, {"y": ("float32", ["n", 8])})
    with infersdk.load(path, backend, device="cuda:0", max_batch=8, custom_ops=[OnGpu], **options) as infer:
        for seed in range(4):
            a = np.maximum(batch(3, seed), 0)
            want = a * np.clip(a / 6 + 0.5, 0, 1) - a * np.clip(0.5 - 0.3 * a, 0, 1) - a
            np.testing.assert_allclose(infer(batch(3, seed))["y"], want, atol=1e-5)


def test_no_cuda_kernel(tmp_path: Path, how: tuple[str, dict[str, Any]]) -> None:
    backend, options = how
    with pytest.raises(CustomOpError, match="HSwish has no kernel for device 'cuda'; it has cpu: write cuda"):
        infersdk.load(swish_model(tmp_path / "m.onnx"), backend, device="cuda:0", custom_ops=[HSwish], **options)


@pytest.mark.parametrize("head", ["yolov5", "yolov8"])
def test_boxes_out_of_the_model(tmp_path: Path, how: tuple[str, dict[str, Any]], head: str) -> None:
    """The boxes of the processor's decoder, bit for bit."""
    backend, options = how
    model = read_model(detector(tmp_path / "m.onnx", head))
    AddDetectionNms(head, {"conf": 0.3}).apply(model)
    path = write_model(model, tmp_path / "boxes.onnx")
    with infersdk.load(path, backend, device="cuda:0", max_batch=4, **options) as infer:
        for rows in (3, 1, 4, 4, 4):
            output = head_output(np.random.default_rng(rows), head, rows, 300)
            images = output.reshape(rows, 1, -1, 300)
            got = infer(images)
            size = (300, images.shape[2])
            check_rows((got["detections"], got["count"], got["stats"]), decoded(output, head, size=size, conf=0.3))


def test_in_torch() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    x = torch.randn(100, 8, device="cuda")
    from infersdk.custom_ops import torch_operator

    got = torch_operator(OnGpu)(x, alpha=0.25)
    torch.testing.assert_close(got, x * torch.clamp(0.25 * x + 0.5, 0, 1))
