"""What changes a graph: one pass a file, all of one form.

A pass has a `name`, a `version`, and `apply(model) -> bool`, which changes an `onnx_ir.Model` in place and says whether
it did. Its settings are the fields of a frozen dataclass. Raise the version when the pass would make another graph of
the same model: the version is part of the keys of cached engines.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..._lazy import lazy
from ..._text import logger
from ...cache import Cache, key_of
from ...errors import ConfigError, OutputError, UnsupportedModelError
from ...model_source import ModelLike, ModelSource
from ..files import EXTERNAL_KEY, borrowed_model, check_external_files, load_proto, model_bytes, proto_bytes

if TYPE_CHECKING:
    import onnx_ir as ir

    from .add_nms import AddNms
    from .chain_poolings import ChainPoolings
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
    from .set_opset import SetOpset
    from .static_reshapes import StaticReshapes
    from .to_float16 import ToFloat16
    from .unsigned_activations import UnsignedActivations
    from .weight_forms import NarrowIndices, ShrinkConstants, WeightsOffInputs

__all__ = [
    "PASSES", "AddNms", "ChainPoolings", "CleanUp", "EndAtHead", "FoldSpaceToDepth", "FreeBatch", "FreeSize",
    "HardSwish", "ImageIn", "NameAxes", "NameNodes", "NarrowIndices", "Pass", "QuantizedOperators", "ResizeInput",
    "SetOpset", "ShrinkConstants", "StaticReshapes", "ToFloat16", "UnsignedActivations", "WeightsOffInputs",
    "apply_passes", "cached_model", "loading_passes", "pass_keys", "prepared_model",
]  # fmt: skip

_log = logger("infersdk.graph")


if TYPE_CHECKING:
    PASSES: tuple[type[Pass], ...]


class Pass(Protocol):
    """One change of a graph."""

    name: ClassVar[str]
    version: ClassVar[int]

    def concerns(self, source: ModelSource) -> bool:
        """A quick look at the file: False if the pass is certain to leave the model unchanged."""

    def apply(self, model: ir.Model) -> bool:
        """Changes the model in place; returns whether it did."""


#: The module that each pass comes from.
_HOMES = {
    "AddNms": "add_nms",
    "ChainPoolings": "chain_poolings",
    "CleanUp": "clean_up",
    "EndAtHead": "end_at_head",
    "FoldSpaceToDepth": "fold_space_to_depth",
    "FreeBatch": "free_batch",
    "FreeSize": "free_size",
    "HardSwish": "hard_swish",
    "ImageIn": "image_in",
    "NameAxes": "name_axes",
    "NameNodes": "name_nodes",
    "NarrowIndices": "weight_forms",
    "QuantizedOperators": "quantized_operators",
    "ResizeInput": "resize_input",
    "SetOpset": "set_opset",
    "ShrinkConstants": "weight_forms",
    "StaticReshapes": "static_reshapes",
    "ToFloat16": "to_float16",
    "UnsignedActivations": "unsigned_activations",
    "WeightsOffInputs": "weight_forms",
}


_find, __dir__ = lazy(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    return tuple(map(_find, sorted(_HOMES))) if name == "PASSES" else _find(name)


def loading_passes(
    backend: str,
    device: str,
    precision: str | None,
    *,
    keep_nodes: Sequence[str] = (),
    keep_io: bool = True,
    x86: bool = True,
) -> Iterator[Pass]:
    """What happens to a model between its file and the runtime, in this order.

    Args:
        backend, device, precision: where it runs, the device by its kind: `"cpu"`, `"cuda"`.
        keep_nodes, keep_io: see `ToFloat16`.
        x86: whether the processor is one.
    """
    if precision == "fp16" and backend in ("onnxruntime", "tensorrt", "tensorrt-rtx"):
        # They run a graph in the types that it is written in. OpenVINO has a setting for it.
        yield _find("ToFloat16")(keep_nodes=tuple(keep_nodes), keep_io=keep_io)
    if backend == "onnxruntime" and device == "cpu":
        yield _find("HardSwish")()  # OpenVINO knows all its forms
    if backend == "onnxruntime" and device == "cpu" and x86:
        # Signed activations would be computed in floating point, or slowly.
        yield _find("UnsignedActivations")()
    if backend == "openvino" and device in ("cpu", "auto"):
        yield _find("QuantizedOperators")()
        # OpenVINO 2026.4 makes signed activations unsigned itself, and gets a convolution fused with a sum wrong then.
        yield _find("UnsignedActivations")()


def pass_keys(passes: Iterable[Pass]) -> list[dict[str, Any]]:
    """What a cache's key holds of passes: names, versions and settings."""
    return [{"pass": one.name, "version": one.version, **_settings(one)} for one in passes]


def _settings(one: Pass) -> dict[str, Any]:
    return {f.name: getattr(one, f.name) for f in dataclasses.fields(one)}  # type: ignore[arg-type]


def apply_passes(model: ir.Model, passes: Iterable[Pass]) -> bool:
    """Applies the passes in their order; returns whether one of them changed the model."""
    changed = False
    for one in passes:
        applied = one.apply(model)
        _log.debug("pass %s %s the graph", one.name, "changes" if applied else "leaves")
        changed |= applied
    return changed


def prepared_model(model: ModelLike, passes: Iterable[Pass]) -> bytes | None:
    """The model after its own passes and these, as the bytes of an ONNX file; None where they leave it as it is.

    A model in memory that keeps weights in files comes with them inside.

    Raises:
        ModelFormatError, UnsupportedModelError: the file, or one of its weights, cannot be read, or the result is too
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


def cached_model(model: ModelLike, passes: Iterable[Pass]) -> bytes | None:
    """As `prepared_model()`, whose result is kept in the cache by the contents of the model and the passes: a process
    that loads the same model again reads no graph. A model with weights in other files is prepared each time, and so is
    one in memory, whose content is never written to a disk.
    """
    source, passes = ModelSource.of(model), list(passes)
    if source.path is None or not source.is_onnx or source.mentions(EXTERNAL_KEY):
        return prepared_model(source, passes)
    every = pass_keys([*source.passes, *passes])
    key = key_of({"kind": "prepared model", "model": hashlib.sha256(source.read()).hexdigest(), "passes": every})
    cache = Cache()
    if (found := cache.get(key)) is not None:
        return found[0] or None
    content = prepared_model(source, passes)
    try:
        cache.put(key, content or b"", kind="prepared model", backend="", label=source.name)
    except OutputError as error:
        _log.info("%s is prepared again each time: %s", source.name, error)
    return content
