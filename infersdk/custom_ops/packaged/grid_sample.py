"""infersdk::GridSample3D: ONNX's GridSample for volumes, which OpenVINO 2026.4 does not support."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ...graph.shapes import infer_shapes
from ..declaration import CustomOp
from ..native import NativeFunction
from ..shapes import require_equal

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["GridSample3D", "replace_grid_samples"]


class GridSample3D(CustomOp):
    """Samples volumes at grid points, like ONNX's GridSample (opset 20) with five dimensions.

    Inputs:
        x: [batch, channels, depth, height, width].
        grid: [batch, d, h, w, 3], with x, y and z from -1 to 1 within the volume.

    Attributes:
        mode: "linear" or "nearest".
        padding_mode: "zeros", "border" or "reflection", for points outside of the volume.
        align_corners: whether -1 and 1 are the centres of the outermost voxels instead of their edges.
    """

    domain = "infersdk"
    inputs: ClassVar[dict[str, str]] = {"x": "float32", "grid": "float32"}
    outputs: ClassVar[dict[str, str]] = {"y": "float32"}
    # The native kernel reads the attributes in this order.
    mode: str = "linear"
    padding_mode: str = "zeros"
    align_corners: bool = False
    cpu = NativeFunction("ifs_grid_sample_3d")

    def shape(self, x: Any, grid: Any) -> Any:
        if x.ndim != 5 or grid.ndim != 5:
            raise ValueError(f"x and grid have 5 dimensions, not {x.ndim} and {grid.ndim}")
        require_equal(x[0], grid[0], "x and grid must have the same batch size")
        require_equal(grid[4], 3, "a point of the grid has three coordinates")
        return (x[0], x[1], *grid[1:4])


def replace_grid_samples(model: ir.Model) -> int:
    """Replaces each GridSample for volumes by GridSample3D; returns their number.

    Nodes with cubic sampling, of unknown rank or of other types than float32 are not replaced.
    """
    import onnx_ir as ir

    infer_shapes(model)
    count = 0
    for node in list(model.graph):
        if node.domain or node.op_type != "GridSample":
            continue
        types = (None, ir.DataType.FLOAT)
        shapes = [value.shape for value in node.inputs if value is not None and value.dtype in types]
        if len(shapes) != 2 or shapes[0] is None or len(shapes[0]) != 5:
            continue
        values = {name: attribute.value for name, attribute in node.attributes.items()}
        if values.get("mode", "linear") == "cubic":
            continue
        made = ir.node(
            GridSample3D.name, node.inputs, values, domain=GridSample3D.domain, num_outputs=1, name=node.name
        )
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], [made], node.outputs, made.outputs)
        count += 1
    if count:
        imports = model.graph.opset_imports
        imports[GridSample3D.domain] = max(GridSample3D.version, imports.get(GridSample3D.domain, 0))
    return count
