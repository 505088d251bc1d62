"""Instance segmentation: boxes with masks, assembled from mask coefficients and prototypes."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np

from ..ops import assemble_masks
from ..ops.device_masks import DeviceMasks
from .description import ModelDescription, Recognition, Shape
from .detector import RowDetector
from .end_to_end import EndToEnd
from .execution import Outputs
from .output_checks import check_floats
from .results import Masks
from .yolo import YOLO, DeviceBoxes, YOLOv5, YOLOv8

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ..image import Geometry
    from ..infer import Infer

__all__ = ["EndToEndSeg", "YOLOv5Seg", "YOLOv8Seg"]

#: Bytes of masks for each image at first, and for all images of a batch at most.
FIRST_CAPACITY, MOST_BYTES = 1 << 20, 1 << 28


class _Segmentation(RowDetector):
    """Base class of models with mask coefficients and prototypes."""

    mask_threshold: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.5

    task: ClassVar[str] = "segment"

    _output: str
    _prototypes: str

    @classmethod
    def recognises(cls, model: ModelDescription) -> Recognition:
        known = super().recognises(model)
        if model.prototypes is None:
            return known if known.answer == "no" else Recognition.no("it gives no mask prototypes")
        return known._replace(family="an instance segmentation model (mask coefficients, and prototypes)")

    @classmethod
    def count_extra(cls, model: ModelDescription) -> int | None:
        count = None if model.prototypes is None else model.prototypes.shape[1]
        return count if isinstance(count, int) else None

    @property
    def extra(self) -> int:
        """The mask coefficients of a box: as many as there are prototypes."""
        count = self._learned.shapes[self._prototypes][1]
        assert isinstance(count, int)
        return count

    def count_classes(self, shapes: Mapping[str, Shape]) -> int | None:
        self._prototypes, shape = next((name, shape) for name, shape in shapes.items() if len(shape) == 4)
        if not isinstance(shape[1], int):
            self._output = next(name for name, shape in shapes.items() if len(shape) == 3)
            return None
        return super().count_classes(shapes)

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        super().verify(outputs)
        check_floats(self._prototypes, outputs[self._prototypes])

    def columns(
        self, outputs: Mapping[str, npt.NDArray[Any]], boxes: npt.NDArray[Any], geometry: Geometry
    ) -> dict[str, Any]:
        prototypes, coefficients = np.ascontiguousarray(outputs[self._prototypes]), self.extra_values(outputs, boxes)
        return {"mask": Masks(assemble_masks(prototypes, coefficients, boxes, geometry, threshold=self.mask_threshold))}


class _DeviceBoxesWithMasks(DeviceBoxes["_RawSegmentation"]):
    """Boxes and masks on the device of a network: the boxes and the bits of the masks alone are copied to the host. The
    masks have the bits that the host assembles.

    The masks of an image have a limit of bytes. The host assembles those of an image that needs more, and later batches
    have a higher limit.
    """

    def __init__(self, model: _RawSegmentation, infer: Infer, capacity: int) -> None:
        super().__init__(model, infer, capacity)
        self._largest = 0  # the bytes of the image with the largest masks
        self._masks = self._new_masks(FIRST_CAPACITY)

    def _new_masks(self, nbytes: int) -> DeviceMasks:
        """Memory of this many bytes for the masks of an image."""
        return DeviceMasks(self._decoder, self._capacity, capacity=nbytes, threshold=self._model.mask_threshold)

    def queue(self, geometries: Sequence[Geometry]) -> None:
        super().queue(geometries)
        most = max(MOST_BYTES // self._capacity, FIRST_CAPACITY) // 4 * 4
        if self._largest > self._masks.capacity < most:
            self._masks.close()
            self._masks = self._new_masks(min(1 << (self._largest - 1).bit_length(), most))
        prototypes = self._infer.outputs[self._model._prototypes]
        self._masks.run(self._output, prototypes, geometries, self._block, stream=self._stream)
        self._masks.fetch(self._stream)

    def _columns(self, image: int, boxes: npt.NDArray[Any], geometry: Geometry) -> dict[str, Any]:
        needed = self._masks.needed(image)
        if needed <= self._masks.capacity:
            return {"mask": Masks(self._masks.unpack(image, len(boxes)))}
        self._largest = max(self._largest, needed)
        return self._model.columns(Outputs(Outputs(self._infer.outputs), itemgetter(image)), boxes, geometry)

    def close(self) -> None:
        self._masks.close()
        super().close()


class _RawSegmentation(_Segmentation, YOLO):
    per_call: ClassVar[frozenset[str]] = YOLO.per_call | {"mask_threshold"}
    _device_decoder = _DeviceBoxesWithMasks


class YOLOv5Seg(_RawSegmentation, YOLOv5):
    """YOLOv5-seg: outputs [batch, boxes, 5 + classes + coefficients] and [batch, coefficients, height, width].

    The `masks` of its `Detections` are `sigmoid(coefficients x prototypes)` at the size of the image, cropped to the
    box, and above a threshold. `infersdk.ops.assemble_masks` has the details.

    Args:
        mask_threshold: the value that a pixel of a mask exceeds, 0 to 1.

    Further arguments: see `YOLO` and `VisionModel`.
    """


class YOLOv8Seg(_RawSegmentation, YOLOv8):
    """YOLOv8-seg and YOLO11-seg: outputs [batch, 4 + classes + coefficients, boxes] and [batch, coefficients, height,
    width]. The masks are as those of `YOLOv5Seg`.

    Args:
        mask_threshold: the value that a pixel of a mask exceeds, 0 to 1.

    Further arguments: see `YOLO` and `VisionModel`.
    """


class EndToEndSeg(_Segmentation, EndToEnd):
    """An instance segmentation model that chooses its boxes itself: outputs [batch, boxes, 6 + coefficients] and
    [batch, coefficients, height, width]. The masks are as those of `YOLOv5Seg`.

    Args:
        mask_threshold: the value that a pixel of a mask exceeds, 0 to 1.

    Further arguments: see `EndToEnd` and `VisionModel`.
    """

    per_call: ClassVar[frozenset[str]] = EndToEnd.per_call | {"mask_threshold"}
