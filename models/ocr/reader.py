"""Reading text: a network that locates lines, one that turns them, and one that reads them."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np

from ...config import convert
from ...core.model_source import ModelLike
from ...core.tensor_spec import as_numbers
from ...errors import ConfigError, InputError, nearest
from ...image import HostImage, ImageSource, read_image
from ...infer import Infer
from ...loading.registry import check_options, load
from ..declaration import Declared, Fraction, argument
from ..details import ModelDetails
from ..execution import Timings
from ..requests import Requests
from .buffer import PageBuffer, read_page
from .lines import TextLine, TextLines
from .network import characters_of, check_network
from .page import PageReader
from .regions import corner_areas, import_cv2

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self

__all__ = ["OCR"]


class OCR(Requests[TextLines], Declared):
    """The text in images, by the networks of PaddleOCR (PP-OCR).

    ::

        reader = OCR("det.onnx", "rec.onnx", "cls.onnx", backend="openvino")
        for line in reader("page.jpg"):
            print(line.text, line.score)

    It has calls, `stream()`, `submit()`, `map()` and asyncio, as a wrapper has. A pipeline reads a page on each of its
    instances at a time.

    Args:
        detection: locates lines: its input is [n, 3, height, width], its output a map of how sure it is of text.
        recognition: reads lines of 48 pixels: its output is [n, steps, classes]. The classes are a blank, the
            characters that its metadata lists under `character`, and a space.
        orientation: finds lines that may be upside down; these are read in both directions, and the higher score
            counts. None reads all lines in one direction.
        backend, device, precision, options: for each network, as `infersdk.load()` takes them; options may also be
            given as further keyword arguments. In place of a path there may be an `Infer` that is loaded already.
        threshold: the probability above which a pixel is text.
        box_threshold: the mean probability that a line's rectangle has at least.
        unclip: how far rectangles grow beyond the text's core, 0 to 1000.
        text_score: lines whose score is lower are left out, and counted in `dropped`. A call may change it.
        side: minimum smaller side of the image for detection, in pixels; smaller images are enlarged, until their
            larger side is twice `max_side`.
        max_side: maximum larger side; larger images are reduced.
        batch: maximum number of lines that are read together.
        channel_order: of NumPy arrays that are given as images, `"bgr"`, `"rgb"` or `"nv12"`.

    Attributes:
        settings: all settings, as a frozen struct of the type `Settings`.
        characters: the character of each class of the recognition.

    Raises:
        ConfigError: a setting has a wrong value.
        UnsupportedModelError: a network is of another kind, or its characters do not match its classes.
        BackendUnavailableError: OpenCV or the backend is not installed.
        BackendError, ModelError: see `infersdk.load()`.
    """

    detection: ModelLike | Infer = argument(kw_only=False)
    recognition: ModelLike | Infer = argument(kw_only=False)
    orientation: ModelLike | Infer | None = argument(default=None, kw_only=False)
    backend: str = argument(default="onnxruntime", kw_only=False)
    device: str | None = None
    precision: str | None = None
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    threshold: Fraction = 0.3
    box_threshold: Fraction = 0.5
    unclip: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 1.6
    text_score: Fraction = 0.5
    side: Annotated[int, msgspec.Meta(ge=1)] = 736
    max_side: int = 2000
    batch: Annotated[int, msgspec.Meta(ge=1)] = 8
    channel_order: Literal["bgr", "rgb", "nv12"] = "bgr"

    task: ClassVar[str] = "ocr"
    #: The settings that one call or request may change.
    per_call: ClassVar[frozenset[str]] = frozenset({"text_score"})

    def __init__(
        self,
        detection: ModelLike | Infer,
        recognition: ModelLike | Infer,
        orientation: ModelLike | Infer | None = None,
        backend: str = "onnxruntime",
        **settings: Any,
    ) -> None:
        import_cv2()
        own = {name: settings.pop(name) for name in self.Settings.__struct_fields__ if name in settings}
        self._set(own)
        if self.max_side < self.side:
            raise ConfigError(f"max_side={self.max_side} is below side={self.side}; use a max_side of side or more")
        check_options(self.settings.options, "options", ("model", "backend", "device", "precision"), settings)
        options = {**self.settings.options, **settings}
        given = [*options, *(name for name in ("device", "precision") if getattr(self, name) is not None)]
        if given and all(isinstance(one, Infer | None) for one in (detection, recognition, orientation)):
            raise ConfigError(f"{', '.join(given)}: these belong to load(), and all networks are loaded already")
        with ExitStack() as opened:

            def network(source: ModelLike | Infer, task: str, dimensions: int) -> Infer:
                if not isinstance(source, Infer):
                    source = load(source, backend, device=self.device, precision=self.precision, **options)
                    opened.callback(source.close)
                check_network(source, task, dimensions)
                return source

            locates, reads = network(detection, "detection", 4), network(recognition, "recognition", 3)
            turns = network(orientation, "orientation", 2) if orientation is not None else None
            self.characters = characters_of(reads)
            self._reader = PageReader(locates, reads, turns, self.characters, self.settings)
            opened.pop_all()
        self.class_names = ()
        self._start({})

    def _start(self, pipeline_settings: Mapping[str, Any]) -> None:
        self._timings = Timings()
        self._reading = Lock()  # the thread that uses the networks holds it
        #: The network that stands for all: they are on one device.
        self.network = self._reader.recognition
        super()._start(pipeline_settings)

    # ---- calls ----

    @property
    def timings(self) -> Timings:
        """How long the stages of the last call took; zeros before the first."""
        return self._timings

    def _stream(self, images: Iterable[ImageSource | HostImage], parameters: Mapping[str, Any]) -> Iterator[TextLines]:
        text_score = self._text_score(parameters)

        def used() -> Iterator[TextLines]:
            with self._idle:
                yield from self._calls.each(self._read(image, text_score) for image in images)

        return used()

    def _read(self, source: ImageSource | HostImage, text_score: float) -> TextLines:
        start = perf_counter()
        image = read_image(source, channel_order=self.channel_order)
        seconds = perf_counter() - start
        with self._reading:  # one page at a time
            result = read_page(self._reader, image, text_score)
            self._timings = self._reader.timings
        self._timings.read = seconds
        return result

    def _text_score(self, parameters: Mapping[str, Any]) -> float:
        """The score that a line must reach, with the parameters of a call."""
        if unknown := sorted(set(parameters) - self.per_call):
            hint = nearest(unknown[0], self.per_call)
            raise ConfigError(f"{unknown[0]!r} cannot be given with a call of OCR; use text_score{hint}")
        if not parameters:
            return self.text_score
        own = {**msgspec.structs.asdict(self.settings), **parameters}
        return float(convert(own, self.Settings, "OCR settings").text_score)

    def regions(self, image: ImageSource | HostImage) -> npt.NDArray[np.float32]:
        """The rectangles around the lines, in the order of reading: (N, 4, 2) in pixels of the image, each from where
        its line begins above, clockwise.
        """
        source = read_image(image, channel_order=self.channel_order)
        with self._reading:
            return self._reader.regions(source)

    def read_lines(self, image: ImageSource | HostImage, quads: npt.ArrayLike) -> list[TextLine]:
        """The text of lines of any score.

        Args:
            quads: (N, 4, 2): the corners of each line, from where it begins above, clockwise.

        Raises:
            InputError: `quads` has another shape, a corner is not two finite numbers, or the first corner of a line and
                its two neighbours lie on one straight line.
        """
        source = read_image(image, channel_order=self.channel_order)
        corners = as_numbers("quads", quads, np.float32)
        corners = corners if corners.size else corners.reshape(0, 4, 2)
        if corners.shape[1:] != (4, 2) or not np.isfinite(corners).all():
            raise InputError(
                f"quads of shape {corners.shape} is {reprlib.repr(corners.tolist())}; give (N, 4, 2) of finite x and y"
            )
        for number, quad in enumerate(corners):
            if corner_areas(quad)[0] < 1:
                raise InputError(
                    f"quads[{number}] is {quad.tolist()}, and the sides at its first corner span less than one pixel; "
                    "give the corners of a rectangle around the line"
                )
        with self._reading:
            return self._reader.read_lines(source, corners)

    # ---- for pipelines ----

    def _batch_buffer(self, capacity: int | None) -> PageBuffer:
        """For a pipeline: batches of `capacity` pages, or of one, on clones of the networks."""
        text_score = self._without_pipeline()._text_score
        return PageBuffer(self._reader.clone(), capacity or 1, self.channel_order, text_score)

    # ---- one reader, several of them ----

    @property
    def details(self) -> ModelDetails:
        """Its details, for pipelines, commands, the server and benchmarks."""
        return ModelDetails(self, self.network, self._reader.networks)

    def clone(self) -> Self:
        """A second reader for another thread, over the same weights."""
        twin = self._copied()
        twin._reader = self._reader.clone()
        twin._start(self._pipeline_holder.settings)
        return twin

    def _release_networks(self) -> None:
        with self._reading:
            for network in self._reader.networks:
                network.release()

    def _close_networks(self) -> None:
        with self._reading:  # waits for the page that is read
            self._reader.close()

    def __repr__(self) -> str:
        infer = self.network
        return f"<OCR {infer.model.name}, {len(self.characters)} characters, {infer.active_backend} on {infer.device}>"
