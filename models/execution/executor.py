"""What an executor is, and what it must know of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...image import DeviceImage, Geometry, HostImage
    from ...image.nvimgcodec import EncodedImage
    from ...infer import Infer
    from ..preprocessor import Preprocessor

__all__ = [
    "BatchItem",
    "DevicePostprocess",
    "Executor",
    "HostOutputs",
    "ModelStages",
    "OutputRow",
    "Parameters",
    "Timings",
]

Result = TypeVar("Result")

#: Settings of one request that differ from the model's own (`conf=0.5`); None where there are none.
Parameters: TypeAlias = "Mapping[str, Any] | None"


class BatchItem(NamedTuple):
    """One image of a batch, and the parameters of its request."""

    image: HostImage | DeviceImage | EncodedImage
    parameters: Parameters = None


class Timings(msgspec.Struct):
    """Seconds that the last call spent in each stage, over all its images. On a GPU the stages run side by side: all
    of it is in `infer`.
    """

    read: float = 0.0
    preprocess: float = 0.0
    infer: float = 0.0
    postprocess: float = 0.0

    @property
    def total(self) -> float:
        return self.read + self.preprocess + self.infer + self.postprocess


class DevicePostprocess(Protocol):
    """Postprocessing on a CUDA device, on the stream of one execution context. An optional addition to a wrapper."""

    def queue(self, geometries: Sequence[Geometry], parameters: Sequence[Parameters]) -> None:
        """Queues the postprocessing of the batch that is on the stream, and the copy of its results to the host."""

    def collect(self, geometries: Sequence[Geometry], parameters: Sequence[Parameters]) -> list[Any]:
        """Waits for that copy; returns one result an image."""

    def close(self) -> None:
        """Frees what it holds."""


class CanvasSet(Protocol):
    """What an executor knows of the canvases that images go on."""

    whole: Preprocessor
    sizes: tuple[tuple[int, int], ...]  # the whole one is the last
    several: bool  # whether there is more than one

    def on(self, canvas: tuple[int, int]) -> Preprocessor:
        """The preprocessor for this canvas."""

    def of(self, size: tuple[int, int]) -> Preprocessor:
        """The preprocessor for an image of (width, height)."""


@dataclass
class ModelStages(Generic[Result]):
    """What an executor knows of a model.

    Attributes:
        canvases: from images to the network's input.
        verify: called with the outputs of the first run; raises UnsupportedModelError when they are of another family.
        postprocess: results from the outputs of a batch: arrays by name, whose first rows belong to the geometries.
        postprocess_rows: the same with the parameters of each row, where there are any.
        device_postprocess: makes the postprocessing on a device for an execution context and a capacity; with
            None the outputs are fetched, and `postprocess` runs on the host.
        decode: where image files are decoded: `"cpu"`, `"gpu"` or `"auto"`.
        verified: whether `verify` has passed. It is shared by all executors of a model.
        decoded: how many images each decoder has decoded.
    """

    canvases: CanvasSet
    verify: Callable[[Mapping[str, npt.NDArray[Any]]], None]
    postprocess: Callable[[Mapping[str, npt.NDArray[Any]], Sequence[Geometry]], list[Result]]
    postprocess_rows: Callable[[Mapping[str, npt.NDArray[Any]], Sequence[Geometry], Sequence[Parameters]], list[Result]]
    device_postprocess: Callable[[Infer, int], DevicePostprocess | None]
    decode: str = "cpu"
    verified: bool = field(default=False)
    decoded: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    @property
    def preprocessor(self) -> Preprocessor:
        """That of the whole input."""
        return self.canvases.whole

    def name_decoders(self, results: Sequence[Any], decoders: Sequence[str | None]) -> None:
        """Counts what decoded the images (None for one that came as an array), and writes it into each result that has
        a field for it. Results are frozen for their users; these have just been made.
        """
        named = [decoder for decoder in decoders if decoder is not None]
        if not named:
            return
        with self._lock:
            self.decoded.update(named)
        for result, decoder in zip(results, decoders, strict=True):
            if decoder is not None and hasattr(result, "decoder"):
                object.__setattr__(result, "decoder", decoder)

    def verify_once(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        if not self.verified:
            self.verify(outputs)
            self.verified = True


class HostOutputs(Mapping[str, "npt.NDArray[Any]"]):
    """A network's outputs as arrays on the host, each fetched when it is looked at. They are those of its last run."""

    def __init__(self, infer: Infer) -> None:
        self._infer = infer

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._infer._outputs_view[name].numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._infer.outputs)

    def __len__(self) -> int:
        return len(self._infer.outputs)


class OutputRow(Mapping[str, "npt.NDArray[Any]"]):
    """The outputs of one image of a batch, each looked up when it is needed.

    Args:
        outputs: those of the batch.
        row: of the image.
    """

    def __init__(self, outputs: Mapping[str, npt.NDArray[Any]], row: int) -> None:
        self._outputs, self._row = outputs, row

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = self._outputs[name][self._row]
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)


class Executor(Protocol[Result]):
    """Runs batches of images on one network. One thread at a time.

    Attributes:
        infer: the network, as it was when the executor was made.
        capacity: the most images in a batch.
        timings: what the batches since `timings` was last set took.
    """

    infer: Infer
    capacity: int
    timings: Timings

    def read(self, source: Any) -> HostImage | DeviceImage | EncodedImage:
        """The image that `source` is or names, where this executor can take it."""

    def run(self, batch: Sequence[BatchItem]) -> list[Result]:
        """The results of one batch of images of one canvas, waited for."""

    def run_one(self, source: Any, parameters: Parameters) -> Result:
        """The result of a batch of one image, which is read here."""

    def run_arrays(self, sources: Sequence[Any], parameters: Parameters) -> list[Result] | None:
        """The results of several images, in order, where all are arrays that lie on the host and go on one canvas; None
        where they have to be decoded or grouped first, for `stream()`.
        """

    def stream(self, batches: Iterator[Sequence[BatchItem]]) -> Iterator[list[Result]]:
        """The results of each batch, in order."""

    def warm_up(self, count: int, canvas: tuple[int, int], source: Any) -> None:
        """Runs a batch of `count` times an image on a canvas, as `run()` does, until that takes no longer than later
        ones.
        """

    def open_rows(self) -> None:
        """Called once before the first `prepare()`."""

    def set_canvas(self, canvas: tuple[int, int]) -> None:
        """The canvas of the rows that are prepared from now on. Called while no row is in use."""

    def prepares_quickly(self, item: Any) -> bool:
        """Whether `prepare()` takes so little time that the submitting thread should call it itself."""

    def prepare(self, row: int, item: Any, parameters: Parameters) -> None:
        """Takes a request into a row of the next batch. Several threads may call this, each for its own rows."""

    def move(self, source: int, target: int) -> None:
        """Makes row `target` what row `source` is."""

    def run_rows(self, count: int) -> None:
        """Runs the first `count` rows that were prepared, and waits for the end of that."""

    def row_results(self, count: int) -> list[Result]:
        """The results of these rows. They are free again."""

    def close(self) -> None:
        """Frees what it made; `infer` stays the caller's."""
