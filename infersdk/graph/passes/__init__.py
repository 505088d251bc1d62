"""Graph passes.

A pass has a `name`, a `version`, and `apply(model) -> bool`, which changes an `onnx_ir.Model` in place and returns
whether it did. Its settings are the fields of a frozen dataclass. The version is part of the keys of cached engines:
increase it when the result of the pass changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...core.cache import Cache, key_of
from ...core.lazy import lazy
from ...core.model_source import ModelLike, ModelSource
from ...core.text import logger
from ...errors import ConfigError, OutputError, UnsupportedModelError
from ..files import EXTERNAL_KEY, borrowed_model, check_external_files, load_proto, model_bytes, proto_bytes
from .base import Pass

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

    from .add_nms import AddNms
    from .clean_up import CleanUp
    from .end_at_head import EndAtHead
    from .fold_space_to_depth import FoldSpaceToDepth
    from .free_batch import FreeBatch
    from .free_size import FreeSize
    from .hard_swish import HardSwish
    from .image_in import ImageIn
    from .name_axes import NameAxes
    from .name_nodes import NameNodes
    from .quantized_operators import QuantizedOperators
    from .resize_input import ResizeInput
    from .saturated_quantizers import SaturatedQuantizers
    from .set_opset import SetOpset
    from .static_reshapes import StaticReshapes
    from .to_float16 import ToFloat16
    from .unfused import Unfused
    from .unsigned_activations import UnsignedActivations
    from .weight_forms import NarrowIndices, ShrinkConstants, WeightsOffInputs

__all__ = [
    "AddNms", "CleanUp", "EndAtHead", "FoldSpaceToDepth", "FreeBatch", "FreeSize", "HardSwish", "ImageIn", "NameAxes",
    "NameNodes", "NarrowIndices", "Pass", "QuantizedOperators", "ResizeInput", "SaturatedQuantizers", "SetOpset",
    "ShrinkConstants", "StaticReshapes", "ToFloat16", "Unfused", "UnsignedActivations", "WeightsOffInputs",
    "apply_passes", "cached_model", "loading_passes", "pass_keys", "prepared_model",
]  # fmt: skip

_log = logger("infersdk.graph")

_find, __dir__ = lazy(__name__, {
    "add_nms": "AddNms", "clean_up": "CleanUp", "end_at_head": "EndAtHead", "fold_space_to_depth": "FoldSpaceToDepth",
    "free_batch": "FreeBatch", "free_size": "FreeSize", "hard_swish": "HardSwish", "image_in": "ImageIn",
    "name_axes": "NameAxes", "name_nodes": "NameNodes", "quantized_operators": "QuantizedOperators",
    "resize_input": "ResizeInput", "saturated_quantizers": "SaturatedQuantizers", "set_opset": "SetOpset",
    "static_reshapes": "StaticReshapes", "to_float16": "ToFloat16", "unfused": "Unfused",
    "unsigned_activations": "UnsignedActivations", "weight_forms": "NarrowIndices ShrinkConstants WeightsOffInputs",
})  # fmt: skip
__getattr__ = _find


def loading_passes(
    backend: str,
    device: str,
    precision: str | None,
    *,
    keep_nodes: Sequence[str] = (),
    keep_io: bool = True,
    x86: bool = True,
) -> Iterator[Pass]:
    """The passes that are applied when a backend loads a model, in order.

    Args:
        backend, precision: as in `infersdk.load()`.
        device: the kind of device, such as `"cpu"` or `"cuda"`.
        keep_nodes, keep_io: as in `ToFloat16`.
        x86: whether the processor is an x86 processor.
    """
    if precision == "fp16" and backend in ("onnxruntime", "tensorrt", "tensorrt-rtx"):
        # These run a graph in its own types. OpenVINO has a setting for the precision.
        yield _find("ToFloat16")(keep_nodes=tuple(keep_nodes), keep_io=keep_io)
    if backend == "onnxruntime" and device == "cpu":
        yield _find("HardSwish")()  # OpenVINO recognises all forms
    if backend == "onnxruntime" and device == "cpu" and x86:
        # ONNX Runtime computes signed activations in floating point or slowly.
        yield _find("UnsignedActivations")()
    if backend == "openvino" and device in ("cpu", "auto"):
        yield _find("QuantizedOperators")()
        yield _find("SaturatedQuantizers")()
        yield _find("Unfused")()
        # OpenVINO 2026.4 converts signed activations too, but then computes convolutions with a fused sum incorrectly.
        yield _find("UnsignedActivations")()


def pass_keys(passes: Iterable[Pass]) -> list[dict[str, Any]]:
    """The names, versions and settings of passes, for cache keys."""
    return [{"pass": one.name, "version": one.version, **vars(one)} for one in passes]


def apply_passes(model: ir.Model, passes: Iterable[Pass]) -> bool:
    """Applies passes in order; returns whether one of them changed the model."""
    changed = False
    for one in passes:
        applied = one.apply(model)
        _log.debug("pass %s %s the graph", one.name, "changes" if applied else "leaves")
        changed |= applied
    return changed


def prepared_model(model: ModelLike, passes: Iterable[Pass]) -> bytes | None:
    """Applies the passes of the model source and then `passes`; returns the bytes of the result, or None if unchanged.

    The external data of a model in memory is included in the result.

    Raises:
        ModelFormatError, UnsupportedModelError: the file or its external data cannot be read, or the result is too
            large.
        ConfigError: a setting of a pass does not fit the model.
        BackendUnavailableError: a package that reads graphs is not installed.
    """
    source = ModelSource.of(model)
    wanted = [one for one in (*source.passes, *passes) if one.concerns(source)]
    external = source.is_onnx and source.mentions(EXTERNAL_KEY)
    apart = external and source.path is None
    if external:
        check_external_files(source)
    if not wanted and not apart:
        return None
    if all(hasattr(one, "apply_to_proto") for one in wanted) and not external:
        proto = load_proto(source)
        changed = [one.apply_to_proto(proto) for one in wanted]
        return proto_bytes(proto) if any(changed) else None
    with borrowed_model(source) as graph:
        try:
            return model_bytes(graph) if apply_passes(graph, wanted) or apart else None
        except (ConfigError, UnsupportedModelError) as error:
            raise type(error)(f"{source.name}: {error}") from None


def cached_model(model: ModelLike, passes: Iterable[Pass]) -> Path | bytes | None:
    """`prepared_model()` with a cache, whose key is made of the contents of the model and the passes.

    Returns:
        The path of the cached file. The bytes for models that are encrypted in the cache, and for those that are not
        cached: with external data, or given in memory.
    """
    source, passes = ModelSource.of(model), list(passes)
    if not source.is_kept or not source.is_onnx:
        return prepared_model(source, passes)
    every = pass_keys([*source.passes, *passes])
    digest = source.digest()
    key = key_of({"kind": "prepared model", "model": digest, "passes": every})
    cache = Cache(sealer=source.sealer)
    if source.sealer is not None and (opened := cache.get(key)) is not None:
        return opened[0] or None
    if source.sealer is None and (found := cache.find(key)) is not None:
        return found[0] if found[1].nbytes else None
    content = prepared_model(source, passes)
    if source.mentions(EXTERNAL_KEY) or source.digest() != digest:
        return content  # the key does not include external data, or the file was replaced meanwhile
    try:
        cache.put(key, content or b"", kind="prepared model", backend="", label=source.name)
    except OutputError as error:
        _log.info("%s cannot be cached and is prepared on each load: %s", source.name, error)
        return content
    return cache.path(key) if content and source.sealer is None else content
