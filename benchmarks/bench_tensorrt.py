"""What a call of the TensorRT-RTX backend costs on the host, above the runtime's own call.

The baseline is what a user of the bindings would write: shapes and addresses set once, then `execute_async_v3` and a
wait on the stream for each run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import infersdk
from infersdk.backends import _cuda

if TYPE_CHECKING:
    from collections.abc import Iterator

onnx = pytest.importorskip("onnx")
pytest.importorskip("tensorrt_rtx_bindings")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(_cuda.device_count() == 0, reason="needs an NVIDIA GPU"),
    pytest.mark.benchmark(group="tensorrt-rtx, batch 1, a tiny network"),
]


@pytest.fixture(scope="module")
def infer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("bench")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])], "g",
        [value("x", onnx.TensorProto.FLOAT, ("n", 3, 8, 8))], [value("y", onnx.TensorProto.FLOAT, ("n", 3, 8, 8))],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path = Path(folder / "relu.onnx")
    onnx.save(model, str(path))
    with infersdk.load(path, "tensorrt-rtx", cache_dir=str(folder), kernel_specialization="eager") as loaded:
        loaded(np.ones((1, 3, 8, 8), np.float32))
        yield loaded


def test_runtime_alone(benchmark: Any, infer: Any) -> None:
    context, stream = infer._context, infer.stream

    def run() -> None:
        context.execute_async_v3(stream.handle)
        stream.synchronize()

    with infer._cuda:
        benchmark.pedantic(run, rounds=2000, iterations=5, warmup_rounds=100)


def test_forward(benchmark: Any, infer: Any) -> None:
    benchmark.pedantic(infer.forward, rounds=2000, iterations=5, warmup_rounds=100)
