"""The rows of a batch on the host, and the part of a model that runs with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from operator import methodcaller
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np

from ...errors import ConfigError, InferenceError
from ...image import image_size
from ...ops import preprocess_into
from ...pipeline.batch_buffer import SideBySide
from ..preprocessor import geometry_of_pixels

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...image import DeviceImage, Geometry, HostImage
    from ...image.nvimgcodec import EncodedImage
    from ...infer import Infer
    from ..canvases import Canvases
    from ..preprocessor import Preprocessor

__all__ = ["DevicePostprocess", "HostBuffer", "ModelStages", "Outputs", "Parameters", "Row", "Timings"]

Result = TypeVar("Result")

#: Settings of one request that differ from the model's own (`conf=0.5`); None where there are none.
Parameters: TypeAlias = "Mapping[str, Any] | None"
#: `VisionModel.postprocess()`.
Postprocess: TypeAlias = "Callable[[Mapping[str, npt.NDArray[Any]], Sequence[Geometry]], list[Result]]"


class Row(NamedTuple):
    """An image of a batch, its geometry on the canvas, and the parameters of its request."""

    image: HostImage | DeviceImage | EncodedImage
    geometry: Geometry
    parameters: Parameters = None


class Timings(msgspec.Struct):
    """Seconds of the last call in each stage, over all its images. On a GPU the stages run in parallel, and `infer` has
    the whole time.
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
        """Waits for that copy, and returns one result for each image."""

    def close(self) -> None:
        """Frees its memory."""


@dataclass
class ModelStages(Generic[Result]):
    """The part of a model that its batch buffers use.

    Attributes:
        canvases: from images to the network's input.
        verify: called with the outputs of the first run; raises UnsupportedModelError when they are of another family.
        postprocess: for the parameters of a request, the function that makes the results of a batch from its outputs:
            arrays by name, whose first rows belong to the geometries. Raises ConfigError for parameters that a request
            cannot have.
        device_postprocess: makes the postprocessing on a device for an execution context and a capacity; with
            None the outputs are fetched, and `results()` runs on the host.
        decode: where image files are decoded: `"cpu"`, `"gpu"` or `"auto"`.
        preprocess: where images are preprocessed for a CUDA device: `"device"`, `"host"` or `"auto"`.
        verified: whether `verify` has passed. It is shared by all buffers of a model.
        copied: whether the results of a batch were found to be no views of the outputs.
        decoded: how many images each decoder has decoded.
        locations: with `preprocess="auto"`, the faster location of each kind of batch; see `WholeBatch`.
    """

    canvases: Canvases
    verify: Callable[[Mapping[str, npt.NDArray[Any]]], None]
    postprocess: Callable[[Parameters], Postprocess[Result]]
    device_postprocess: Callable[[Infer, int], DevicePostprocess | None]
    decode: str = "cpu"
    preprocess: str = "auto"
    verified: bool = False
    copied: bool = False
    decoded: Counter[str] = field(default_factory=Counter)
    locations: dict[tuple[int, bool], str] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @property
    def preprocessor(self) -> Preprocessor:
        """The preprocessor of the whole input."""
        return self.canvases.whole

    def bucket_of(self, source: Any) -> tuple[int, int] | None:
        """The canvas of an image; None where there is only one.

        It is the whole input for addresses and for streams that cannot seek, whose size is unknown before they are
        read.
        """
        if not self.canvases.several:
            return None
        size = image_size(source, self.canvases.whole.channel_order)
        return self.canvases.sizes[-1] if size is None else self.canvases.of(size).input.size

    def results(
        self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry], parameters: Sequence[Parameters]
    ) -> list[Result]:
        """The results of a batch, with the parameters of each row. The outputs of the first run are verified.

        Raises:
            UnsupportedModelError: as `verify`.
            InferenceError: `postprocess()` does not return a list of one result for each row, or returns a view of an
                output in the first batch: the next run would overwrite it.
        """
        self.verify_once(outputs)
        if len(geometries) == 1 or not any(parameters):
            return self._checked(self.postprocess(parameters[0]), outputs, geometries)
        results: list[Result] = []
        for row, (geometry, own) in enumerate(zip(geometries, parameters, strict=True)):
            one = {name: array[row : row + 1] for name, array in outputs.items()}
            results += self._checked(self.postprocess(own), one, [geometry])
        return results

    def _checked(
        self,
        postprocess: Postprocess[Result],
        outputs: Mapping[str, npt.NDArray[Any]],
        geometries: Sequence[Geometry],
    ) -> list[Result]:
        results = postprocess(outputs, geometries)
        fits = isinstance(results, (list, tuple))
        if not fits or len(results) != len(geometries):
            found = type(results).__name__ + (f" of {len(results)}" if fits else "")
            raise InferenceError(
                f"{postprocess.__qualname__}() returned a {found}; return a list of one result for each geometry, of "
                f"which the batch has {len(geometries)}"
            )
        if not self.copied:
            for name, output in outputs.items():
                if any(np.may_share_memory(array, output) for array in _arrays(results)):
                    raise InferenceError(
                        f"{postprocess.__qualname__}() returned a view of output {name!r}, which the next run "
                        "overwrites; return a copy, such as array.copy()"
                    )
            self.copied = True
        return results

    def with_decoders(self, results: list[Result], decoders: Sequence[str | None]) -> list[Result]:
        """These results, with the name of the decoder of each image where they have a field for it. Counts the images.

        Args:
            decoders: None for an image that came as an array.
        """
        if named := [decoder for decoder in decoders if decoder is not None]:
            with self._lock:
                self.decoded.update(named)
            for result, decoder in zip(results, decoders, strict=True):
                if decoder is not None and hasattr(result, "_remember"):
                    result._remember("decoder", decoder)
        return results

    def verify_once(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        if not self.verified:
            self.verify(outputs)
            self.verified = True


def _arrays(value: Any, depth: int = 4) -> Iterator[npt.NDArray[Any]]:
    """The arrays in results: in lists, mappings and dataclasses, nested up to this depth."""
    if isinstance(value, np.ndarray):
        yield value
    elif depth:
        items: Iterable[Any] = value if isinstance(value, (list, tuple)) else ()
        if isinstance(value, Mapping):
            items = value.values()
        elif is_dataclass(value):
            items = [getattr(value, one.name, None) for one in fields(value)]
        for item in items:
            yield from _arrays(item, depth - 1)


class Outputs(Mapping[str, "npt.NDArray[Any]"]):
    """Outputs as arrays by name, each made when it is looked at.

    Args:
        sources: those of a network, by name.
        array_of: makes an array of one; by default it fetches a tensor to the host.
    """

    def __init__(
        self, sources: Mapping[str, Any], array_of: Callable[[Any], npt.NDArray[Any]] = methodcaller("numpy")
    ) -> None:
        self.sources, self._array_of = sources, array_of

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._array_of(self.sources[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


class HostBuffer(Generic[Result]):
    """The rows of a batch on the host. Images are preprocessed straight into the rows of the network's bound input.

    One thread at a time uses it; several threads write rows. The network stays the caller's. `CudaBuffer` has the same
    methods.

    Raises:
        ConfigError: the files are to be decoded on a CUDA device.
    """

    decodes = False  # files on the device

    def __init__(self, infer: Infer, stages: ModelStages[Result], capacity: int) -> None:
        if stages.decode == "gpu":
            raise ConfigError(
                f"decode='gpu' needs a model on a CUDA device, and {infer.model.name} is on {infer.device}; "
                "use decode='cpu' or decode='auto'"
            )
        self.infer, self.capacity = infer, capacity
        self._stages, self._canvas = stages, stages.preprocessor
        self._runs, self._outputs = SideBySide(infer), Outputs(infer.outputs)
        self._rows: list[Any] = [None] * capacity  # geometry, parameters and decoder of each image.
        self._address = self._stride = 0  # of the first row of the input, and bytes from row to row
        self._begun = 0  # rows of the input, until it runs
        self._written = False  # whether rows were written since the last run
        self.read = stages.preprocessor.read

    def prepares_quickly(self, item: Any) -> bool:
        """Whether reading and writing the item takes less time than waking up a thread."""
        return False

    def begin(self, canvas: Preprocessor, count: int) -> None:
        """The next rows are `count` images on this canvas, or fewer. Called while no row is in use."""
        self._canvas = canvas
        # What fits the count keeps its address, so it holds for smaller batches too.
        tensor = canvas.input.tensor(self.infer, count, self.capacity)
        self._address, self._stride = tensor.host_ptr(read=False, write=True), tensor.nbytes // tensor.shape[0]
        self._tensor, self._begun = tensor, count

    def write(self, row: int, image: Any, parameters: Parameters) -> None:
        """Writes an image that was read into a row."""
        self._written = True
        preprocessor = self._canvas
        geometry = preprocessor.geometry_of(image.size)
        sampled = geometry if image.reduced_from is None else geometry_of_pixels(image, geometry)
        address = self._address + row * self._stride
        preprocess_into(image.view(), sampled, preprocessor.transform, address, self._stride)
        self._rows[row] = geometry, parameters, image.decoder

    def decode(self, count: int) -> None:
        """They are decoded."""

    def move(self, source: int, target: int) -> None:
        self._rows[target] = self._rows[source]
        pixels = self._canvas.input.tensor(self.infer, self.capacity, self.capacity).numpy(writable=True)
        pixels[target] = pixels[source]

    def run(self, count: int) -> None:
        if self._begun != count:
            self._tensor = self._canvas.input.tensor(self.infer, count, self.capacity)
            self._tensor.host_ptr(read=False, write=True)  # the rows were written through their address
        if self._written and self._tensor.shape[0] > count:
            self._tensor.numpy(writable=True)[count:] = 0
        self._begun, self._written = 0, False
        self._outputs.sources = self._runs.forward()

    def wait(self) -> None:
        """`run()` has waited."""

    def results(self, count: int) -> list[Result]:
        """The results of these rows."""
        geometries, parameters, decoders = map(list, zip(*self._rows[:count], strict=True))
        results = self._stages.results(self._outputs, geometries, parameters)
        return self._stages.with_decoders(results, decoders)

    def warm_up(self, count: int, source: Any) -> None:
        """Runs `count` rows of an image until a further run takes no longer than usual."""
        image = self.read(source)
        for _ in range(self.infer.scheduling.warm_up_runs):
            for row in range(count):
                self.write(row, image, None)
            self.run(count)
            self.results(count)
            self._runs.warm_up()

    def close(self) -> None:
        self._runs.close()
