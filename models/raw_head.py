"""Detectors whose network is loaded without the decoding of its head.

On a processor, the decoding in a network computes values that the threshold drops. Where the graph ends with a known
decoding (`infersdk.graph.passes.EndAtHead`), the network is loaded without it, and the native decoder starts at the
maps. On CUDA devices the decoding is fused, and stays in the network.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from ..core.device import Device
from ..core.model_source import ModelLike, ModelSource
from ..core.tensor_spec import TensorSpec
from ..errors import ConfigError, UnsupportedModelError
from ..graph.files import borrowed_model, proto_of
from ..graph.graph_end import UnprovenError
from ..graph.passes import EndAtHead, apply_passes
from ..graph.raw_head import RawHead
from ..loading.registry import backend_class, list_backends
from ..ops import GridLevel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ..infer import Infer

__all__ = [
    "Shape", "check_raw_head", "decoded_shape", "decoded_spec", "grid_levels", "head_cut_off", "raw_head_of",
    "without_decoding",
]  # fmt: skip

#: The dimensions of a tensor; text and None are open ones.
Shape = tuple[int | str | None, ...]

#: Backends that run a graph as it is written, on the processor.
_BACKENDS = ("onnxruntime", "openvino")


def without_decoding(
    model: ModelLike, backend: str, device: str | None, while_building: object, *, required: bool = False
) -> ModelSource:
    """The model, to be loaded without the decoding of its head where that can be, or has to be (`required`)."""
    source = ModelSource.of(model)
    reason = _reason_against(source, backend, device, while_building)
    if reason is None:
        return source.with_passes(EndAtHead())
    if required:
        if backend not in list_backends():
            backend_class(backend)  # raises, with the names that there are
        raise ConfigError(f"decode_head='native' is not for this: {reason}; use decode_head='auto'")
    return source


def _reason_against(source: ModelSource, backend: str, device: str | None, while_building: object) -> str | None:
    """Why a model keeps its decoding for reasons other than its graph; None where the graph decides."""
    if backend not in _BACKENDS:
        return f"backend {backend!r} decodes in the network"
    kind = Device.parse(device if device is not None else backend_class(backend).declaration.default_device).kind
    if kind != "cpu":
        return f"on device {kind!r} the network decodes"
    if while_building is not None:
        return "while_building= gives the model to two backends, and both have the same outputs"
    if not source.is_onnx:
        return f"{source.name} is not an ONNX file"
    if domains := source.foreign_domains:
        return f"{source.name} has operators of {', '.join(sorted(domains))}"
    if importlib.util.find_spec("onnx") is None:
        return "reading its graph needs onnx, which is not installed"
    return None


def check_raw_head(setting: str, head: RawHead | None, network: Infer) -> None:
    """Checks that the head of a network is decoded as the setting `decode_head` says."""
    if setting == "graph" and head is not None:
        raise ConfigError(
            f"decode_head='graph', but {network.model.name} ends at the maps of its head; use decode_head='auto'"
        )
    if setting != "native" or head is not None:
        return
    if not any(isinstance(one, EndAtHead) for one in network.model.passes):
        raise ConfigError(
            f"decode_head='native', but this Infer is loaded already, and gives decoded boxes; give the ONNX file of "
            f"{network.model.name} in its place, or use decode_head='auto'"
        )
    raise UnsupportedModelError(
        f"decode_head='native', but {network.model.name} does not end with a decoding that is known: "
        f"{_unproven(network.model)}; use decode_head='auto'"
    )


def _unproven(source: ModelSource) -> str:
    """Why the graph of a model does not prove its decoding."""
    try:
        _head_in(source)
    except UnprovenError as error:
        return str(error)
    return "its graph was changed while it was loaded"


def _head_in(source: ModelSource) -> RawHead:
    """The head that a model is cut at when it is loaded.

    Raises:
        UnprovenError: it is not cut; the message has the reason.
    """
    before = next(i for i, one in enumerate(source.passes) if isinstance(one, EndAtHead))
    with borrowed_model(source) as model:
        apply_passes(model, source.passes[:before])
        return EndAtHead().find(proto_of(model))


def head_cut_off(model: ModelLike) -> RawHead | None:
    """The head at which a model ends when it is loaded; None where it keeps its decoding."""
    if not isinstance(model, ModelSource) or not any(isinstance(one, EndAtHead) for one in model.passes):
        return None
    try:
        return _head_in(model)
    except UnprovenError:
        return None


def raw_head_of(metadata: Mapping[str, str], outputs: Sequence[TensorSpec]) -> RawHead | None:
    """The raw head that outputs are the maps of; None for other outputs."""
    head = RawHead.read(metadata)
    return head if head is not None and list(head.names) == [spec.name for spec in outputs] else None


def decoded_shape(head: RawHead, shapes: Mapping[str, Sequence[int | str | None]]) -> Shape:
    """The shape of the output that the decoding would give, by the shapes of the maps."""
    rows: int | str = 0
    for level in head.levels:
        height, width = shapes[level.maps[-1]][2:4]
        if not isinstance(height, int) or not isinstance(width, int) or not isinstance(rows, int):
            rows = "boxes"
        else:
            rows += height * width * max(len(level.anchors), 1)
    batch = shapes[head.names[0]][0]
    return (batch, rows, head.values) if head.layout == "yolov5" else (batch, head.values, rows)


def decoded_spec(head: RawHead, outputs: Sequence[TensorSpec]) -> TensorSpec:
    """The output that the decoding would give."""
    return TensorSpec(head.output, outputs[0].dtype, decoded_shape(head, {spec.name: spec.shape for spec in outputs}))


def grid_levels(head: RawHead, maps: Sequence[npt.NDArray[Any]]) -> list[GridLevel]:
    """The levels of a head for a `RawHeadDecoder`, by the maps of an image."""
    arrays, levels = dict(zip(head.names, maps, strict=True)), []
    for level in head.levels:
        height, width = arrays[level.maps[0]].shape[1:3]
        weights, bias = level.convolution() or (None, None)
        levels.append(GridLevel(width, height, level.stride, level.anchors, weights, bias))
    return levels
