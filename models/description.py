"""Descriptions of model files by their metadata and the shapes of their inputs and outputs.

A wrapper decides from a `ModelDescription` whether a file is one for it (`VisionModel.recognises`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np

from .names import names_of_file, python_literal
from .preprocessor import image_sides
from .raw_head import Shape, decoded_shape, decoded_spec, raw_head_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ..core.tensor_spec import TensorSpec
    from ..graph.raw_head import RawHead
    from ..infer import Infer

__all__ = ["GRIDS", "ModelDescription", "Recognition", "Shape", "boxes_per_cell", "cells_of", "count_cells", "is_open"]

#: Strides of the grids that a raw head may have.
GRIDS = ((8, 16, 32), (8, 16, 32, 64), (16, 32), (4, 8, 16, 32))
#: Minimum and maximum rows of a head whose boxes are selected already, by NMS or by queries.
QUERIES = (50, 1000)


@dataclass(frozen=True)
class ModelDescription:
    """Inputs, outputs and metadata of a model.

    Attributes:
        name: of the file.
        inputs, outputs: the specs, in order. Of a network that ends at the maps of its head, the output is that of
            the file, with decoded boxes.
        task: the metadata's `task`; None if it says nothing.
        names: the metadata's class names; `()` if there are none.
        keypoints: the metadata's `kpt_shape` as (points, values a point); None if it says nothing.
        model_type: the metadata's `model_type`, the family as transformers calls it; None if it says nothing.
        end_to_end: whether the metadata says that the boxes are chosen inside (`end2end`).
        raw_head: the head whose maps the network gives in place of decoded boxes; None where it gives its outputs.
        run_size: (width, height) of the input in a run; None before.
    """

    name: str
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    task: str | None
    names: tuple[str, ...]
    keypoints: tuple[int, int] | None
    model_type: str | None
    end_to_end: bool
    raw_head: RawHead | None = None
    run_size: tuple[int, int] | None = None

    @classmethod
    def of(cls, infer: Infer) -> ModelDescription:
        return cls.of_specs(infer.model.name, infer.input_specs, infer.output_specs, infer.metadata)

    @classmethod
    def of_specs(
        cls, name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], metadata: Mapping[str, str]
    ) -> ModelDescription:
        """From the declarations of a file."""
        task = metadata.get("task", "").strip().lower() or None
        head = raw_head_of(metadata, outputs)
        return cls(
            name,
            inputs,
            outputs if head is None else [decoded_spec(head, outputs)],
            task,
            names_of_file(metadata),
            _pair(metadata),
            metadata.get("model_type", "").strip().lower() or None,
            metadata.get("end2end", "").strip().lower() == "true",
            head,
        )

    def with_shapes(self, shapes: Mapping[str, Shape], size: tuple[int, int]) -> ModelDescription:
        """The same model, with the shapes that the network's outputs had in a run on an input of this size."""
        if self.raw_head is not None:
            shapes = {self.raw_head.output: decoded_shape(self.raw_head, shapes)}
        outputs = [msgspec.structs.replace(spec, shape=shapes.get(spec.name, spec.shape)) for spec in self.outputs]
        return replace(self, outputs=outputs, run_size=size)

    @property
    def has_open_outputs(self) -> bool:
        """Whether an output has open dimensions besides its batch."""
        return any(is_open(spec.shape) for spec in self.outputs)

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of the outputs by name."""
        return {spec.name: spec.shape for spec in self.outputs}

    @property
    def input_size(self) -> tuple[int, int] | None:
        """(width, height) of the one input, where it is fixed, or in the run that gave the shapes."""
        if self.run_size is not None:
            return self.run_size
        for spec in self.inputs:
            if len(spec.shape) == 4:
                height, width = image_sides(spec.shape)
                if isinstance(height, int) and isinstance(width, int):
                    return width, height
        return None

    @property
    def head(self) -> TensorSpec | None:
        """The first output of three dimensions: (batch, rows, columns). Exporters may add feature maps behind it."""
        return next((spec for spec in self.outputs if len(spec.shape) == 3), None)

    @property
    def prototypes(self) -> TensorSpec | None:
        """The output of mask prototypes, (batch, coefficients, height, width), beside a head."""
        maps = [spec for spec in self.outputs if len(spec.shape) == 4]
        return maps[0] if self.head is not None and len(maps) == len(self.outputs) - 1 == 1 else None

    @property
    def has_chosen_rows(self) -> bool:
        """Whether the head gives few rows of box, score, class and more: end to end, with NMS or without."""
        if self.head is None or self.raw_head is not None or (self.prototypes is None and len(self.outputs) > 1):
            return False
        _, rows, columns = self.head.shape
        if self.end_to_end:
            return True
        least = 6 if self.prototypes is None else 7  # with a mask coefficient
        if not isinstance(rows, int) or not isinstance(columns, int) or columns < least:
            return False
        few = QUERIES[0] <= rows <= QUERIES[1] and columns < rows
        return (few or columns == 6) and not boxes_per_cell(rows, self.input_size)


class Recognition(NamedTuple):
    """The answer of `VisionModel.recognises()`.

    Attributes:
        answer: `"yes"`: `models.load()` may take the wrapper. `"nearly"`: the wrapper can read the file, but the file
            does not say that it is one for it: it has to be named by `type`. `"no"`: it cannot read the file.
        because: the reason, for a sentence about the file ("it has 2 outputs, ..."); `""` for yes.
        family: the family that the file looks like, as a noun phrase ("a YOLOv8 (8400 boxes of 84 values)"); `""` where
            it looks like no file of the wrapper's family.
    """

    answer: Literal["yes", "nearly", "no"]
    because: str = ""
    family: str = ""

    @classmethod
    def yes(cls, family: str = "") -> Recognition:
        return cls("yes", "", family)

    @classmethod
    def nearly(cls, because: str, family: str = "") -> Recognition:
        return cls("nearly", because, family)

    @classmethod
    def no(cls, because: str, family: str = "") -> Recognition:
        return cls("no", because, family)


def is_open(shape: Shape) -> bool:
    """Whether dimensions besides the batch are open."""
    return any(not isinstance(d, int) for d in shape[1:])


def count_cells(size: tuple[int, int], strides: Sequence[int]) -> int:
    """How many cells the grids of these strides have on an image of that size."""
    return sum((size[0] // stride) * (size[1] // stride) for stride in strides)


def cells_of(size: tuple[int, int], strides: Sequence[int]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The centre of each cell of the grids on an input, (cells, 2) in pixels, and its stride, (cells, 1)."""
    centres = [
        (np.stack(np.meshgrid(*(np.arange(side // stride) for side in size)), -1).reshape(-1, 2) + 0.5) * stride
        for stride in strides
    ]
    sides = [np.full((len(part), 1), float(stride)) for part, stride in zip(centres, strides, strict=True)]
    return np.concatenate(centres), np.concatenate(sides)


def boxes_per_cell(boxes: int, size: tuple[int, int] | None) -> int:
    """How many boxes a head gives for each cell of its grids: 3 or 1; 0 for other numbers, or an open size."""
    if size is not None:
        for strides in GRIDS:
            cells = count_cells(size, strides)
            if boxes in (cells, 3 * cells):
                return boxes // cells
    return 0


def _pair(metadata: Mapping[str, str]) -> tuple[int, int] | None:
    try:
        points, values = python_literal(metadata.get("kpt_shape", ""))
        return int(points), int(values)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
