"""What changes a graph: one pass a file, all of one form.

A pass has a `name`, a `version`, and `apply(model) -> bool`, which changes an `onnx_ir.Model` in place and says whether
it did. Its settings are the fields of a frozen dataclass. Raise the version when the pass would make another graph of
the same model: the version is part of the keys of cached engines.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ...errors import ConfigError, UnsupportedModelError
from ...model_source import ModelLike, ModelSource
from ..files import EXTERNAL_KEY, borrowed_model, check_external_files, model_bytes
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

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "PASSES", "AddNms", "ChainPoolings", "CleanUp", "EndAtHead", "FoldSpaceToDepth", "FreeBatch", "FreeSize",
    "HardSwish", "ImageIn", "NameAxes", "NameNodes", "NarrowIndices", "Pass", "QuantizedOperators", "ResizeInput",
    "SetOpset", "ShrinkConstants", "StaticReshapes", "ToFloat16", "UnsignedActivations", "WeightsOffInputs",
    "apply_passes", "loading_passes", "pass_keys", "prepared_model",
]  # fmt: skip

_log = logging.getLogger("infersdk.graph")


class Pass(Protocol):
    """One change of a graph."""

    name: ClassVar[str]
    version: ClassVar[int]

    def concerns(self, source: ModelSource) -> bool:
        """A quick look at the file: False if the pass is certain to leave the model unchanged."""

    def apply(self, model: ir.Model) -> bool:
        """Changes the model in place; returns whether it did."""


#: All passes there are.
PASSES: tuple[type[Pass], ...] = (
    AddNms, ChainPoolings, CleanUp, EndAtHead, FoldSpaceToDepth, FreeBatch, FreeSize, HardSwish, ImageIn, NameAxes,
    NameNodes, NarrowIndices, QuantizedOperators, ResizeInput, SetOpset, ShrinkConstants, StaticReshapes, ToFloat16,
    UnsignedActivations, WeightsOffInputs,
)  # fmt: skip


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
        yield ToFloat16(keep_nodes=tuple(keep_nodes), keep_io=keep_io)
    if backend == "onnxruntime" and device == "cpu":
        yield HardSwish()  # OpenVINO knows all its forms
    if backend == "onnxruntime" and device == "cpu" and x86:
        # Signed activations would be computed in floating point, or slowly.
        yield UnsignedActivations()
    if backend == "openvino" and device in ("cpu", "auto"):
        yield QuantizedOperators()
        # OpenVINO 2026.4 makes signed activations unsigned itself, and gets a convolution fused with a sum wrong then.
        yield UnsignedActivations()


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
    with borrowed_model(source) as graph:
        try:
            return model_bytes(graph) if apply_passes(graph, wanted) or apart else None
        except (ConfigError, UnsupportedModelError) as error:
            raise type(error)(f"{source.name}: {error}") from None
