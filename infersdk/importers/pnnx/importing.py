"""Converts PNNX graphs to ONNX by exporting them as PyTorch modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..processes import refusals
from ..workers.exchange import full_sizes, shapes_by_input
from .graph import PnnxGraph
from .running import as_module

if TYPE_CHECKING:
    from ..conversion import Imported, Request

__all__ = ["import_pnnx"]


def import_pnnx(request: Request) -> Imported:
    """The importer of `.pnnx.param` files."""
    graph = PnnxGraph.read(request.source)
    module = as_module(graph)
    from ..torch import export_in_process

    names = [f"in{index}" for index in range(len(graph.inputs))]
    shapes, known = request.order["shapes"], [one.dtype for one in graph.inputs]
    with refusals():
        sizes = full_sizes(names, [one.shape for one in graph.inputs], known, shapes, batch=None)
        given = shapes_by_input(names, shapes)
    dtypes = [
        dtype.name if dtype is not None else given.get(name, {}).get("dtype") or "float32"
        for name, dtype in zip(names, known, strict=True)
    ]
    wanted = list(zip(sizes, dtypes, strict=True))
    free = [{axis: None for axis, size in enumerate(one.shape or ()) if size is None} for one in graph.inputs]
    return export_in_process(module, names, wanted, request, prefix="out", free=free if any(free) else None)
