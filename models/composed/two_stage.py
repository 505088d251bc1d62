"""A detector, and a second model on its boxes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ...errors import ConfigError, DeadlineExceeded, InferSDKError
from ...image import DeviceImage, HostImage, ImageSource, SharedImage, read_image
from ...image.uploads import bring_in
from ...ops.batch import shared_workers
from ...stream import Stream
from ..declaration import UNCHECKED, argument
from ..read_ahead import read_ahead
from ..requests import Requests
from ..results import Detections
from ..vision import VisionModel
from .base import Composed, begun, map_requests, map_together, require_boxes, whole_image
from .chain import Chain, ChainedImage
from .crops import CropKind, Cutter, cutter
from .image_slots import ImageSlots
from .outcomes import CancellableRequest, Ended, EndedRequest
from .processor_runs import run_one_at_a_time
from .stage_driver import StageDriver, map_blocks

if TYPE_CHECKING:
    from ..image_model import ImageModel
    from .base import Pending

__all__ = ["TwoStage"]

#: Images whose parts are gathered for one call of the second model, at most.
GATHERED = 16
#: Batches of images that are on a device, and on their way through both models there, at most.
BLOCKS_AHEAD = 8


class TwoStage(Composed[Detections]):
    """A model of boxes, and a second model that looks at each of them.

    ::

        persons = models.load("yolov8n.onnx", classes=["person"])
        people = TwoStage(persons, models.Embedder("osnet.onnx"), column="vector")
        for person in people("street.jpg"):
            print(person.xyxy, person.columns["vector"])

    The results are those of the detector with one column more: what the second model says of each box, in the order of
    the boxes. The parts of all images that are under way fill the second model's batches. A part that cannot be cut
    out, or fails, fails alone: its row of the column holds the exception.

    Args:
        detector: a model whose results are `Detections`: a wrapper, or `Tiled`.
        second: any wrapper, or `OCR`.
        crop: what the second model gets: `"box"` the pixels within the box, `"oriented"` an oriented box turned
            upright, `"landmarks"` a face turned and scaled by its five landmarks; or a function of an image and its
            `Detections` that returns an image for each box.
        margin: by how much a box is enlarged on each side, as a share of that side.
        column: the name of the new column.

    Raises:
        ConfigError: a setting has a wrong value.
        UnsupportedModelError: the results of the detector are not `Detections`.
    """

    parts = ("detector", "second")
    detector: ImageModel[Detections] = argument(kw_only=False)
    second: ImageModel[Any] = argument(kw_only=False)
    crop: Annotated[CropKind | Cutter, UNCHECKED] = "box"
    margin: float = 0.0
    column: str = "second"

    def _prepare(self) -> None:
        if not self.column.isidentifier() or self.column in ("mask", "keypoints", "oriented"):
            raise ConfigError(f"column is {self.column!r}; use a plain name that Detections do not have already")
        require_boxes(self.detector)
        run_one_at_a_time(self.models)
        self._cut = self.crop if callable(self.crop) else cutter(self.crop, self.margin)
        self._threads: ThreadPoolExecutor | None = None
        self._slots: ImageSlots | None = None
        self._guard = threading.Lock()
        first, second = self.detector.image_device, self.second.image_device
        #: Where parts are cut. A function may need the pixels on the host.
        self._device = first if first == second and isinstance(self.crop, str) else None

    # ---- calls ----

    def stream(
        self, images: Iterable[ImageSource | HostImage], *, return_exceptions: bool = False, **parameters: Any
    ) -> Iterator[Detections]:
        """The results of any number of images, in order; up to 16 of them are read ahead.

        Args:
            return_exceptions: return the exception of an image in place of its result, as `map()` does, through which
                the images go then.
        """
        if return_exceptions:
            return self.map(images, return_exceptions=True, **parameters)
        return self._stream(images, parameters)

    def _stream(self, images: Iterable[ImageSource | HostImage], parameters: Mapping[str, Any]) -> Iterator[Detections]:
        read: deque[Any] = deque()

        def sources() -> Iterator[Any]:
            for source in images:
                read.append(self._shared(source, read=True))
                yield read[-1]

        batch = self.second.batch_limit
        waiting: list[tuple[Detections, Sequence[Any]]] = []
        count = 0
        for boxes in self.detector.stream(sources(), **parameters):
            parts = self.cut(read.popleft(), boxes)
            waiting.append((boxes, parts))
            count += len(parts)
            if count >= batch or len(waiting) == GATHERED:
                yield from self._run_second(waiting)
                waiting, count = [], 0
        yield from self._run_second(waiting)

    def _run_second(self, waiting: Sequence[tuple[Detections, Sequence[Any]]]) -> Iterator[Detections]:
        """The results of images whose parts go through the second model together."""
        good = [part for _, parts in waiting for part in parts if not isinstance(part, Exception)]
        answers = iter(self.second(good) if good else [])
        for boxes, parts in waiting:
            yield self.joined(boxes, [part if isinstance(part, Exception) else next(answers) for part in parts])

    # ---- requests ----

    def submit_for(
        self,
        on_end: Callable[[EndedRequest], object],
        image: ImageSource | HostImage,
        parameters: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        patient: bool = False,
    ) -> CancellableRequest:
        """See `Composed.submit_for()`. The boxes and the parts run together with whatever else is waiting.

        As many images may be on their way as both pipelines have slots. With more of them it does what the settings of
        the detector's pipeline say.
        """
        until = None if deadline is None else monotonic() + deadline
        slots = self._image_slots()
        key = object()
        if not slots.take(key, timeout=timeout, until_deadline=deadline, patient=patient):
            outcome = Ended(DeadlineExceeded("the deadline passed while other images were on their way"))
            on_end(outcome)
            return outcome

        def ended(outcome: Any) -> None:
            slots.free(key)
            on_end(Ended(outcome))

        try:
            chain = Chain(self, self._shared(image, read=True), until, ended)
            left = None if until is None else max(until - monotonic(), 0.0)
            chain.begin(parameters or {}, {"timeout": timeout, "deadline": left}, patient=patient)
        except BaseException:
            slots.free(key)
            raise
        return chain

    def _image_slots(self) -> ImageSlots:
        """Those of `submit()`; `map()` limits its images itself."""
        if self._slots is None:
            first, second = (model.pipelines[0] for model in self.models)
            own = ImageSlots(
                first.slots + second.slots,
                rejects=first.settings.when_full == "raise",
                timeout=first.settings.timeout,
            )
            with self._guard:
                self._slots = self._slots or own
        return self._slots

    def map(
        self,
        images: Iterable[ImageSource | HostImage],
        *,
        in_flight: int | None = None,
        return_exceptions: bool = False,
        **parameters: Any,
    ) -> Iterator[Detections]:
        """As `stream()`, through the pipelines of both models, which run side by side. Waits for slots, whatever
        `submit()` does when all are taken.

        Where both models are wrappers on one CUDA device, one thread drives them, a batch at a time: see
        `StageDriver`. Elsewhere each image and each part is a request, and files are read by the threads of the
        detector's pipeline.

        Args:
            in_flight: images that are read ahead, half of them at a time, so that the detector's batches are full; None
                is twice what its pipeline takes in, and on a device eight of its batches.
            return_exceptions: return the exception of an image in place of its result, instead of raising it.
        """

        if in_flight is not None and in_flight < 1:
            raise ConfigError(f"in_flight is at least 1, not {in_flight}")
        detector, second = self.detector, self.second
        if self._runs_in_blocks and isinstance(detector, Requests) and isinstance(second, Requests):
            results = self._map_blocks(iter(images), in_flight, return_exceptions, parameters)
            return detector.in_use(second.in_use(results))
        ahead = in_flight if in_flight is not None else 2 * self.detector.pipelines[0].slots

        def chained(image: ImageSource | HostImage) -> ChainedImage:
            return ChainedImage(self, self._shared(image))

        def submit(image: ImageSource | HostImage) -> ChainedImage:
            one = chained(image)
            one.chain.begin(parameters, {}, patient=True)
            return one

        def submit_together(several: Sequence[ImageSource | HostImage]) -> list[Pending[Detections]]:
            made = [begun(chained, image, return_exceptions) for image in several]
            if chains := [one.chain for one in made if isinstance(one, ChainedImage)]:
                Chain.begin_together(chains, parameters)
            return made

        if isinstance(self.detector, Requests):
            batch = self.detector.pipeline.max_batch
            return map_together(images, submit_together, ahead, batch, return_exceptions)
        return map_requests(images, submit, ahead, return_exceptions)

    @property
    def _runs_in_blocks(self) -> bool:
        """Whether one thread can drive both models: wrappers of one canvas on one device, whose parts are cut there."""
        models = (self.detector, self.second)
        return (
            self._device is not None
            and self.crop == "box"
            and all(isinstance(model, VisionModel) and len(model.canvas_sizes_used) == 1 for model in models)
        )

    def _map_blocks(
        self, images: Iterator[Any], in_flight: int | None, return_exceptions: bool, parameters: Mapping[str, Any]
    ) -> Iterator[Detections]:
        """`map()` by a `StageDriver`. This thread copies the images to the device meanwhile, a block at a time."""
        assert self._device is not None
        stream = Stream(self._device)
        driver = StageDriver(self, parameters)
        ahead = BLOCKS_AHEAD * driver.capacity if in_flight is None else in_flight
        try:
            yield from map_blocks(
                images, lambda several: driver.submit(self._copied(several, stream)), driver.capacity, ahead,
                return_exceptions,
            )  # fmt: skip
        finally:
            driver.close()

    def _copied(self, sources: Sequence[Any], stream: Stream) -> list[Any]:
        """Images whose copies to the device are queued, all together; an exception in place of one that fails."""
        images = list(read_ahead(iter(sources), self._read, len(sources), overlap=False))
        device, order = stream.device, self.channel_order
        try:
            shared = [image.on_device(device, order) for image in images if isinstance(image, SharedImage)]
            uploads = [image.upload for image in shared if image.upload is not None]
            bring_in(uploads, stream, shared_workers(device.index, shares_cpu=True))
        except InferSDKError as error:
            return [error] * len(images)
        return images

    def _read(self, source: Any) -> Any:
        """What the detector gets, read; the reason where that fails."""
        try:
            return self._shared(source, read=True)
        except Exception as error:
            return error

    # ---- between the models ----

    @property
    def cuts_quickly(self) -> bool:
        """Whether the thread that has the boxes cuts the parts and takes them to the second model. Otherwise a thread
        of this object's own does: other requests would wait where cutting takes long, or a slot is waited for.
        """
        second = self.second
        return self.crop == "box" and isinstance(second, Requests) and second.pipeline_settings.get("timeout") is None

    def cut(self, image: Any, boxes: Detections) -> Sequence[Any]:
        """The part of each box, cut on the device of both models if it is the same one; the reason where that fails.

        Args:
            image: what the detector got.
        """
        if isinstance(image, SharedImage):
            order = self.channel_order
            image = image.read(order) if self._device is None else image.on_device(self._device, order)
        parts = self._cut(image, boxes)
        if len(parts) != len(boxes):
            raise ConfigError(
                f"the function for crop gives {len(parts)} images for {len(boxes)} boxes; give one for each"
            )
        return parts

    def joined(self, boxes: Detections, answers: Sequence[Any]) -> Detections:
        """The boxes with the column of the answers."""
        column = np.empty(len(answers), object)
        for index, one in enumerate(answers):
            column[index] = one
        return boxes.with_columns(**{self.column: column})

    def executor(self) -> ThreadPoolExecutor:
        """The threads that cut parts where that takes long."""
        with self._guard:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(2, thread_name_prefix="infersdk-two-stage")
            return self._threads

    def _shared(self, source: Any, read: bool = False) -> Any:
        """What the detector gets: an image that is decoded once for both models, and copied to their device once.

        Args:
            read: decode it now.

        Raises:
            ImageError: it cannot be read.
        """
        if DeviceImage.is_one(source):
            return whole_image(source, self.channel_order)
        if not isinstance(source, SharedImage):
            if self._device is None and (read or isinstance(source, (np.ndarray, HostImage))):
                return read_image(source, channel_order=self.channel_order)
            source = SharedImage(source, self._pools)
        if read:
            source.read(self.channel_order)
        return source

    def close(self) -> None:
        """Closes both models."""
        super().close()
        if self._threads is not None:
            self._threads.shutdown()

    def __repr__(self) -> str:
        return f"<TwoStage {self.detector!r}, then {self.second!r}>"
