"""Converts PNNX graphs to ONNX by exporting them as PyTorch modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ConfigError
from ..checking import check_samples
from ..conversion import Imported, InputShape, Request, sizes_by_name
from .graph import PnnxGraph
from .running import as_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .graph import Operand

__all__ = ["import_pnnx"]


def import_pnnx(request: Request) -> Imported:
    """The importer of `.pnnx.param` files.

    Raises:
        ConfigError: shapes are given for inputs whose shapes are in the file, or are missing for others, or PyTorch
            cannot run the graph.
        UnsupportedModelError: operators are unknown, or PyTorch cannot export the graph.
        ModelFormatError: the file is damaged.
        BackendUnavailableError: PyTorch is not installed.
    """
    graph = PnnxGraph.read(request.source)
    module = as_module(graph)
    from ..torch import export_in_process

    names = [f"in{index}" for index in range(len(graph.inputs))]
    wanted = _inputs(graph.inputs, names, request.shapes)
    free = [{axis: None for axis, size in enumerate(one.shape or ()) if size is None} for one in graph.inputs]
    imported = export_in_process(module, names, wanted, request, prefix="out", free=free if any(free) else None)
    assert isinstance(imported.model, bytes)
    check_samples(imported.model, request.samples)
    return imported


def _inputs(
    operands: Sequence[Operand], names: Sequence[str], given: Sequence[InputShape]
) -> list[tuple[tuple[int, ...], str]]:
    """The shape and element type of each input, with sizes from `given` for free axes."""
    known = [one.shape is not None and None not in one.shape for one in operands]
    sizes = sizes_by_name([name for name, fixed in zip(names, known, strict=True) if not fixed], given)
    wanted = []
    for name, operand in zip(names, operands, strict=True):
        shape = sizes.get(name, operand.shape)
        if shape is None or None in shape:
            raise ConfigError(
                f"the file does not contain the shape of input {name!r} ({shape}): give an example, "
                f"--shape {name}=1,3,640,640, or run pnnx with inputshape=[1,3,640,640]"
            )
        dtype = "float32" if operand.dtype is None else operand.dtype.name
        wanted.append((tuple(size for size in shape if size is not None), dtype))
    return wanted
