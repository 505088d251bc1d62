"""Converts a model to another opset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import ConfigError, UnsupportedModelError
from ..parts import inline_functions
from .base import Pass

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["SetOpset", "at_least_opset"]


@dataclass(frozen=True)
class SetOpset(Pass):
    """Converts the operators to another opset with ONNX's converter. Functions of the model are inlined.

    Raises (`apply`):
        ConfigError: the version does not exist, or the installed onnx does not know it.
        UnsupportedModelError: the converter fails, or functions cannot be inlined.
    """

    name: ClassVar[str] = "set-opset"
    version: ClassVar[int] = 2

    opset: int

    def apply(self, model: ir.Model) -> bool:
        import onnx
        import onnx.version_converter
        import onnx_ir as ir

        newest = onnx.defs.onnx_opset_version()
        if not isinstance(self.opset, int) or not 1 <= self.opset <= newest:
            raise ConfigError(f"opset is from 1 to {newest}, the newest of onnx {onnx.__version__}, not {self.opset!r}")
        old = model.graph.opset_imports.get("", 0)
        if self.opset == old:
            return False
        inline_functions(model)  # the converter does not convert them
        ir.external_data.load_to_model(model)
        try:
            proto = onnx.version_converter.convert_version(ir.to_proto(model), self.opset)
        except Exception as error:  # its C++ code raises several types
            raise UnsupportedModelError(
                f"cannot convert opset {old} to {self.opset}: {' '.join(str(error).split())}"
            ) from None
        model.graph = ir.from_proto(proto).graph
        least = onnx.helper.find_min_ir_version_for(list(proto.opset_import), ignore_unknown=True)
        model.ir_version = max(model.ir_version or 0, least)
        return True


def at_least_opset(model: ir.Model, opset: int) -> None:
    """Converts a model to `opset` if its opset is lower. Raises the errors of `SetOpset`."""
    if model.graph.opset_imports.get("", 0) < opset:
        SetOpset(opset).apply(model)
