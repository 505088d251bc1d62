"""The rows of a batch buffer on a CUDA device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np

from ...errors import ConfigError
from ...image import DeviceImage, HostImage, SharedImage
from ...image.nvimgcodec import EncodedImage, JpegDecoder, encoded_image, is_installed, shared_decoder
from .buffer import ModelStages, Parameters, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...core.device import Device
    from ...image.nvimgcodec import DecodedBatch
    from ...infer import Infer
    from ..preprocessor import Preprocessor
    from .cuda import CudaInstances, CudaRun

__all__ = ["CudaBuffer"]

Result = TypeVar("Result")


class CudaBuffer(Generic[Result]):
    """The rows of a batch on a CUDA device; see `HostBuffer`. They hold images until the batch runs.

    Args:
        shares_cpu: see `shared_workers()`.
    """

    def __init__(
        self, infer: Infer, instances: CudaInstances, stages: ModelStages[Result], capacity: int, shares_cpu: bool
    ) -> None:
        assert infer.stream is not None
        self.capacity, self._device = capacity, infer.stream.device
        self._instances, self._stages, self._shares_cpu = instances, stages, shares_cpu
        instances.reserve(capacity)
        self._canvas = stages.preprocessor
        self._decoder = _decoder_for(stages, self._device)
        self.decodes = self._decoder is not None
        self._rows: list[Row | None] = [None] * capacity
        self._ready: list[Row] | None = None  # the rows with their files decoded
        self._decoded: DecodedBatch | None = None  # these files, and their memory
        self._runs: list[tuple[Sequence[int], CudaRun]] = []

    def read(self, source: Any) -> HostImage | DeviceImage | EncodedImage:
        preprocessor = self._stages.preprocessor
        if isinstance(source, SharedImage) and not preprocessor.resizes_on_host:
            return source.on_device(self._device, preprocessor.channel_order)
        encoded = None if self._decoder is None else encoded_image(source)
        return preprocessor.read_any(source) if encoded is None else encoded

    def prepares_quickly(self, item: Any) -> bool:
        if self._stages.preprocessor.resizes_on_host:
            return False
        # An image that is decoded is only kept here until the batch runs.
        if isinstance(item, SharedImage):
            return item.is_decoded
        return isinstance(item, (np.ndarray, HostImage)) or DeviceImage.is_one(item)

    def begin(self, canvas: Preprocessor, count: int) -> None:
        self._canvas = canvas

    def write(self, row: int, image: HostImage | DeviceImage | EncodedImage, parameters: Parameters) -> None:
        self._rows[row] = Row(image, self._canvas.geometry_of(image.size), parameters)

    def decode(self, count: int) -> None:
        """Decodes the files among the first `count` rows on the device."""
        if self._decoder is None or self._ready is not None:
            return
        rows = cast("list[Row]", self._rows[:count])
        files = [row.image for row in rows if isinstance(row.image, EncodedImage)]
        self._decoded = self._decoder.decode(files) if files else None
        decoded = iter(self._decoded.images if self._decoded is not None else ())
        images = [next(decoded) if isinstance(row.image, EncodedImage) else row.image for row in rows]
        # The rows keep their files: after a failure each half is decoded again.
        self._ready = [
            row if image is row.image else Row(image, self._canvas.geometry_of(image.size), row.parameters)
            for row, image in zip(rows, images, strict=True)
        ]

    def move(self, source: int, target: int) -> None:
        self._rows[target] = self._rows[source]

    def run(self, count: int) -> None:
        """Queues the first `count` rows. Images on the device and images on the host do not mix: two batches then."""
        self._runs = []
        self.decode(count)
        rows, self._ready = self._ready or cast("list[Row]", self._rows[:count]), None
        for kind in (HostImage, DeviceImage):
            if own := [number for number, row in enumerate(rows) if isinstance(row.image, kind)]:
                run = self._instances.queue([rows[number] for number in own], self._shares_cpu)
                self._runs.append((own, run))

    def wait(self) -> None:
        """Waits for the batch. Raises what made it fail."""
        for _, run in self._runs:
            run.results()

    def results(self, count: int) -> list[Result]:
        results: list[Any] = [None] * count
        for rows, run in self._runs:
            for row, result in zip(rows, run.results(), strict=True):
                results[row] = result
        self._free(count)
        return results

    def _free(self, count: int) -> None:
        """The first rows are not needed any more."""
        self._runs, self._ready = [], None
        self._rows[:count] = [None] * count
        decoded, self._decoded = self._decoded, None
        if self._decoder is not None and decoded is not None:
            self._decoder.recycle(decoded)

    def warm_up(self, count: int, source: Any) -> None:
        for row in range(count):
            self.write(row, self.read(source), None)
        self.decode(count)
        self._instances.warm_up(self._ready or cast("list[Row]", self._rows[:count]), self._shares_cpu)
        self._free(count)

    def close(self) -> None:
        """Ends the batch that is queued, if there is one."""
        for _, run in self._runs:
            run.end()
        self._free(self.capacity)


def _decoder_for(stages: ModelStages[Any], device: Device) -> JpegDecoder | None:
    """The decoder of JPEG files for the setting `decode`; None where the processor decodes.

    Raises:
        BackendUnavailableError: `"gpu"`, and nvImageCodec is not installed or finds no decoder.
        ConfigError: `"gpu"`, and images are resized on the host.
    """
    on_host = stages.preprocessor.resizes_on_host
    if on_host and stages.decode == "gpu":
        raise ConfigError(
            f"decode='gpu' is for interpolation='bilinear', and {stages.preprocessor.interpolation!r} resizes on the "
            "host; leave decode out"
        )
    if on_host or stages.decode == "cpu" or (stages.decode == "auto" and not is_installed()):
        return None
    return shared_decoder(device)
