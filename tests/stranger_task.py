"""A task that the package does not know: the depth of each pixel. One wrapper, one result type, and a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from infersdk.models import ImageInput, Preprocessor, Result, ResultTensor, VisionModel
from infersdk.models.results import Agreement

if TYPE_CHECKING:
    from infersdk.image import Geometry


@dataclass(frozen=True, slots=True, eq=False)
class DepthMap(Result):
    """The depth of each pixel, 0 to 1."""

    depth: npt.NDArray[np.float32]

    def to_dicts(self) -> list[dict[str, Any]]:
        return [{"nearest": float(self.depth.min()), "farthest": float(self.depth.max())}]

    def _tensors(self) -> Mapping[str, ResultTensor]:
        return {"depth": ResultTensor(lambda: self.depth, 2, np.nan)}

    def _drawn(self, pil: Image.Image) -> Image.Image:
        return Image.fromarray((self.depth * 255).astype(np.uint8)).resize(pil.size).convert("RGB")

    def _agreement(self, other: DepthMap, min_score: float) -> Agreement:
        return Agreement.of(1 - float(np.abs(self.depth - other.depth).mean()), 1)


class Depth(VisionModel[DepthMap]):
    """Depth by a network with one map.

    Args:
        far: the depth that becomes 1.
        inverted: near is 1, and far is 0.
    """

    far: float = 1.0
    inverted: bool = False

    task: ClassVar[str] = "depth"
    per_call: ClassVar[frozenset[str]] = frozenset({"far"})

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        return Preprocessor.stretch(input, order="rgb", scale=1 / 255)

    def postprocess(self, outputs: Mapping[str, Any], geometries: Sequence[Geometry]) -> list[DepthMap]:
        maps = [outputs["depth"][row, 0] / self.far for row in range(len(geometries))]
        return [DepthMap(1 - one if self.inverted else one.copy()) for one in maps]


class Mean(VisionModel[float]):
    """The same network; a result is a number."""

    task: ClassVar[str] = "depth"
    preprocessing = Depth.preprocessing

    def postprocess(self, outputs: Mapping[str, Any], geometries: Sequence[Geometry]) -> list[float]:
        return [float(outputs["depth"][row].mean()) for row in range(len(geometries))]


def network(path: Path) -> Path:
    """Two convolutions from [batch, 3, 64, 64] to a map from 0 to 1."""
    from onnx_models import node, save, value

    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.normal(0, 0.5, (8, 3, 3, 3)), "b1": rng.normal(0, 0.1, 8), "w2": rng.normal(0, 1, (1, 8, 1, 1)),
        "b2": np.zeros(1),
    }  # fmt: skip
    nodes = [
        node("Conv", "images w1 b1", "c1", name="first", pads=[1, 1, 1, 1]),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 w2 b2", "c2", name="second"),
        node("Sigmoid", "c2", "depth"),
    ]
    return save(
        path, nodes, [value("images", ["batch", 3, 64, 64])], [value("depth", ["batch", 1, 64, 64])],
        {name: array.astype(np.float32) for name, array in weights.items()}, opset=13,
    )  # fmt: skip
