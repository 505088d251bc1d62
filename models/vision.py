"""What all wrappers share: a model on a backend, images going in, and how long each stage took."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, overload

import msgspec
import numpy as np

from ..config import convert
from ..errors import ConfigError, InputError, UnsupportedModelError
from ..image import DeviceImage, Geometry, HostImage, ImageSource, PixelTransform, image_view, read_image
from ..infer import Infer
from ..ops import preprocess_into
from ..ops.batch import ImageBatch, shared_workers
from ..registry import load
from .execution.cuda import CudaExecutor, PreprocessPlacement, Stage
from .execution.image_buffer import ImageBatchBuffer
from .names import class_names

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy.typing as npt
    from typing_extensions import Self

    from ..pipeline import Pipeline
    from ..tensor import Tensor
    from ..tensor_spec import TensorSpec

__all__ = ["Timings", "VisionModel"]

Result = TypeVar("Result")

#: Images that go through together when nothing else limits the batch.
DEFAULT_BATCH = 8


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds that the last call spent in each stage, over all its images. On a GPU the stages run side by side: all
    of it is in `infer`.
    """

    read: float
    preprocess: float
    infer: float
    postprocess: float

    @property
    def total(self) -> float:
        return self.read + self.preprocess + self.infer + self.postprocess


class VisionModel(ABC, Generic[Result]):
    """A model that takes images. A call takes one and gives one result, or a list and gives a list.

    Attributes:
        network: the `Infer` underneath.
        names: the class names by class_id.
        class_count: how many classes the model tells apart; None where it leaves that open and has not run yet.
        input_size: (width, height) of the network's input.
        timings: how long the stages of the last call took; zeros before the first.
    """

    #: A msgspec.Struct of the wrapper's own settings; a subclass sets it.
    Settings: ClassVar[type[Any]]
    #: The input size where the model leaves it open and nothing is said.
    fallback_size: ClassVar[int] = 640
    #: Images that go through together at most; None is what the network was loaded for.
    _batch_limit: int | None = None
    #: It is a buffer's, and shares the processors with those who submit.
    _in_pipeline = False

    def __init__(
        self,
        path: str | os.PathLike[str] | Infer,
        backend: str = "onnxruntime",
        *,
        device: str | None = None,
        precision: str | None = None,
        max_batch: int | None = None,
        names: Sequence[str] | str | os.PathLike[str] | None = None,
        channel_order: str = "bgr",
        preprocess: str = "auto",
        settings: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        self.settings = convert(settings, self.Settings, f"{type(self).__name__} settings")
        if channel_order not in ("bgr", "rgb", "nv12"):
            raise ConfigError(f"channel_order {channel_order!r} is none of 'bgr', 'rgb', 'nv12'")
        if preprocess not in ("auto", "device", "host"):
            raise ConfigError(f"preprocess {preprocess!r} is none of 'auto', 'device', 'host'")
        self.channel_order = channel_order
        self._preprocess = preprocess
        self._serving = _Serving()
        self._placement = PreprocessPlacement()
        self._given_names = names
        if isinstance(path, Infer):
            if options:
                raise ConfigError(f"options {sorted(options)} belong to load(); this Infer is loaded already")
            self.network = path
        else:
            try:
                self.network = load(
                    path, backend, device=device, precision=precision, max_batch=max_batch, **dict(options)
                )
            except ConfigError as error:
                if any(f"unknown field `{key}`" in str(error) for key in options):  # meant for the wrapper, perhaps
                    own = ", ".join(self.Settings.__struct_fields__)
                    raise ConfigError(f"{error}; those of {type(self).__name__} itself are {own}") from None
                raise
        try:
            self._prepare()
        except BaseException:
            self.network.close()
            raise

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The wrapper that a table of a configuration describes; `options` are the backend's own."""
        fields = dict(config)
        options, pipeline = fields.pop("options", {}), fields.pop("pipeline", {})
        if not isinstance(options, Mapping):
            raise ConfigError(f"options is a table of the backend's own settings, not {options!r}")
        if not isinstance(pipeline, Mapping):
            raise ConfigError(f"pipeline is a table of the settings of submit() and map(), not {pipeline!r}")
        path = fields.pop("path", None)
        if not isinstance(path, str):
            raise ConfigError(f"{cls.__name__}: path names the model file, and is {path!r}")
        known = {
            "backend",
            "device",
            "precision",
            "max_batch",
            "names",
            "channel_order",
            "preprocess",
            "while_building",
            *cls.Settings.__struct_fields__,
        }
        if unknown := sorted(set(fields) - known):
            raise ConfigError(
                f"{cls.__name__}: no setting {unknown[0]!r}; there are {', '.join(sorted(known))}; "
                "what belongs to the backend goes under options, what to submit() and map() under pipeline"
            )
        from ..pipeline import PipelineSettings

        settings = msgspec.structs.asdict(convert(pipeline, PipelineSettings, f"{cls.__name__} pipeline"))
        model = cls(path, **fields, **options)
        model._serving.settings = settings
        return model

    # ---- what a wrapper fills in ----

    def _prepare(self) -> None:
        """Checks that the model is one for this wrapper, and makes what its calls reuse."""
        inputs = self.network.input_specs
        if len(inputs) != 1:
            raise self._unsupported(f"it has {len(inputs)} inputs, not one for images")
        if odd := [spec for spec in self.network.output_specs if spec.kind != "tensor"]:
            raise self._unsupported(f"its output {odd[0]} is no tensor of numbers")
        self._spec = inputs[0]
        self.input_size = self._input_size(self._spec)
        self.class_count: int | None = None
        self.names = class_names(self._given_names, self.network.metadata)
        self._batched = self._spec.has_free_batch
        usual = self._batch_limit or self.network.max_batch or DEFAULT_BATCH
        self._limit = usual if self._batched else self._spec.fixed_batch or 1
        self._transform = self._pixel_transform(np.dtype(self._spec.dtype).name)
        # One geometry for a size: video frames and cameras repeat it.
        self._geometry = lru_cache(maxsize=64)(self._make_geometry)
        self._batch = ImageBatch(self._limit)
        self._generation = self.network.generation
        self._path: CudaExecutor | None = None
        if self.network.stream is not None:
            self._path = CudaExecutor(self, self._limit, self._preprocess, shares_cpu=self._in_pipeline)
        self.timings = Timings(0.0, 0.0, 0.0, 0.0)

    @abstractmethod
    def _pixel_transform(self, dtype: str) -> PixelTransform:
        """What the network wants of each pixel."""

    @abstractmethod
    def _make_geometry(self, size: tuple[int, int]) -> Geometry:
        """How an image of (width, height) comes onto the network's canvas."""

    @abstractmethod
    def _device_stage(self, infer: Infer, capacity: int) -> Stage:
        """What postprocesses the outputs of `infer` on its stream, for batches of up to `capacity`."""

    @abstractmethod
    def _results(self, geometries: Sequence[Geometry]) -> list[Result]:
        """The results of the batch that has just run, one a geometry."""

    # ---- calls ----

    @overload
    def __call__(self, images: list[Any] | tuple[ImageSource | HostImage, ...]) -> list[Result]: ...
    @overload
    def __call__(self, images: ImageSource | HostImage) -> Result: ...
    def __call__(self, images: ImageSource | HostImage | Sequence[ImageSource | HostImage]) -> Result | list[Result]:
        """Takes an image (path, bytes, PIL image or uint8 array) or a list of them.

        Raises:
            ImageError: an image cannot be read; nothing was run for any of its batch.
            InferenceError: the runtime failed.
        """
        if isinstance(images, (list, tuple)) and not isinstance(images, HostImage):
            return self._many(images)
        return self._many([images])[0]  # type: ignore[list-item]

    def stream(self, images: Iterable[ImageSource | HostImage]) -> Iterator[Result]:
        """The results of any number of images, in order, a batch at a time; reads as few ahead as it can."""
        batches = self._batches(images)
        while True:
            self._follow()
            if self._path is not None:
                for results in self._path.run(iter(lambda: None if self._outdated else next(batches, None), None)):
                    yield from results
                if not self._outdated:
                    return
            else:
                batch = next(batches, None)
                if batch is None:
                    return
                yield from self._on_host(batch)[0]

    def network_inputs(
        self, images: Iterable[ImageSource | HostImage], *, batch: int | None = None
    ) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """What the network would be given for these images, a batch at a time: `{input: array}`, nothing is run.

        Args:
            images: on the host, as a call takes them.
            batch: images a batch at most; a model of a fixed batch keeps to its own, and the last one is filled up
                with its last image.
        """
        self._follow()
        limit = min(batch or self._limit, self._limit) if self._batched else self._limit
        group: list[HostImage] = []

        def filled() -> dict[str, npt.NDArray[Any]]:
            missing = 0 if self._batched else self._limit - len(group)
            self._fill([*group, *[group[-1]] * missing])
            rows = len(group) + missing  # behind these there may be padding
            return {self._spec.name: self.network.inputs[self._spec.name].numpy()[:rows].copy()}

        for source in images:
            group.append(read_image(source, channel_order=self.channel_order))
            if len(group) == limit:
                yield filled()
                group.clear()
        if group:
            yield filled()

    @property
    def _outdated(self) -> bool:
        """Whether the network runs elsewhere than what was prepared for, or is about to (`while_building`)."""
        return self.network.change_due or self.network.generation != self._generation

    def _follow(self) -> None:
        """Prepares anew for where the network runs now. Only while no batch is on its way."""
        self.network._check_open()
        if self._outdated:
            if self._path is not None:
                self._path.close()
            self.network.change()
            self._prepare()

    # ---- requests: batched with whatever else is waiting ----

    @property
    def pipeline(self) -> Pipeline[Result]:
        """What runs the requests of `submit()`, `map()` and `infer()`; it is made when it is first asked for."""
        serving = self._serving
        if serving.pipeline is None:
            with serving.guard:
                if serving.pipeline is None:
                    from ..pipeline import Pipeline

                    serving.pipeline = Pipeline(self, **serving.settings)
        made: Pipeline[Result] = serving.pipeline
        return made

    def configure_pipeline(self, **settings: Any) -> Pipeline[Result]:
        """Makes the pipeline with settings of your own: those of `infersdk.pipeline.PipelineSettings`.

        Raises:
            ConfigError: it is there already, or a setting says something wrong.
        """
        from ..pipeline import Pipeline

        with self._serving.guard:
            if self._serving.pipeline is not None:
                raise ConfigError(f"{self!r} serves already; call serve() before the first submit(), map() or infer()")
            made: Pipeline[Result] = Pipeline(self, **{**self._serving.settings, **settings})
            self._serving.pipeline = made
            return made

    def submit(
        self, image: ImageSource | HostImage, *, timeout: float | None = None, deadline: float | None = None
    ) -> Future[Result]:
        """One image, run together with whatever else is waiting; any number of threads may call. See
        `Pipeline.submit()`.
        """
        return self.pipeline.submit(image, timeout=timeout, deadline=deadline)

    def submit_many(
        self, images: Iterable[Any], *, timeout: float | None = None, deadline: float | None = None
    ) -> list[Future[Result]]:
        """Several of them. See `Pipeline.submit_many()`."""
        return self.pipeline.submit_many(images, timeout=timeout, deadline=deadline)

    def map(
        self, images: Iterable[Any], *, in_flight: int | None = None, return_exceptions: bool = False
    ) -> Iterator[Result]:
        """The results of any number of images, in order; they may be endless. See `Pipeline.map()`."""
        return self.pipeline.map(images, in_flight=in_flight, return_exceptions=return_exceptions)

    async def infer(self, image: ImageSource | HostImage, *, deadline: float | None = None) -> Result:
        """From asyncio. See `Pipeline.infer()`."""
        return await self.pipeline.infer(image, deadline=deadline)

    def batch_buffer(self, capacity: int | None) -> ImageBatchBuffer[Result]:
        """For a pipeline: batches of up to `capacity` images, on a clone of the network.

        Raises:
            ConfigError: the network was loaded for less.
        """
        largest = self.network.max_batch if self._batched else self._limit
        if capacity is not None and largest is not None and capacity > largest:
            raise ConfigError(
                f"max_batch={capacity}, but {self.network.model.name} takes batches up to {largest}; "
                + (f"load it with max_batch={capacity}" if self._batched else "export it with a free batch dimension")
            )
        return ImageBatchBuffer(self._twin(capacity or self._batch_limit, in_pipeline=True))

    @property
    def concurrency(self) -> int:
        """For a pipeline: batches that are best under way side by side."""
        return self.network.concurrency

    @property
    def serializes_runs(self) -> bool:
        """For a pipeline: whether these stand one behind the other on a device."""
        return self.network.serializes_runs

    def _batches(self, sources: Iterable[ImageSource | HostImage]) -> Iterator[list[HostImage | DeviceImage]]:
        """The images read, in batches; those on a device and those on the host do not mix."""
        batch: list[HostImage | DeviceImage] = []
        for source in sources:
            image = self._read(source)
            if batch and (len(batch) == self._limit or type(image) is not type(batch[0])):
                yield batch
                batch = []
            batch.append(image)
        if batch:
            yield batch

    def _read(self, source: ImageSource | HostImage) -> HostImage | DeviceImage:
        if self._path is not None and not isinstance(source, np.ndarray) and DeviceImage.is_one(source):
            return DeviceImage(source, self.channel_order)
        return read_image(source, channel_order=self.channel_order)

    def _many(self, sources: Sequence[ImageSource | HostImage]) -> list[Result]:
        self._follow()
        start = perf_counter()
        results: list[Result] = []
        stages = [0.0, 0.0, 0.0]
        if self._path is not None:
            # All stages run side by side on the device: the whole is what can be told.
            for done in self._path.run(self._batches(sources)):
                results += done
            self.timings = Timings(0.0, 0.0, perf_counter() - start, 0.0)
            return results
        for batch in self._batches(sources):
            done, spent = self._on_host(batch)
            results += done
            stages = [a + b for a, b in zip(stages, spent, strict=True)]
        self.timings = Timings(perf_counter() - start - sum(stages), *stages)
        return results

    def _on_host(self, images: Sequence[HostImage | DeviceImage]) -> tuple[list[Result], tuple[float, float, float]]:
        """One batch, and the seconds of its three stages."""
        start = perf_counter()
        geometries = self._fill([p for p in images if isinstance(p, HostImage)])
        filled = perf_counter()
        self.network.forward()
        inferred = perf_counter()
        results = self._results(geometries)
        return results, (filled - start, inferred - filled, perf_counter() - inferred)

    def _fill(self, images: Sequence[HostImage]) -> list[Geometry]:
        """Preprocesses straight into the rows of the bound input, several images on several threads."""
        geometries = [self._geometry(image.size) for image in images]
        tensor = self._input_of(self.network, len(images))
        at = tensor.host_ptr(read=False, write=True)
        views = [image_view(p.pixels, p.format) for p in images]  # type: ignore[arg-type]
        if len(views) == 1:
            preprocess_into(views[0], geometries[0], self._transform, at, tensor.nbytes)
        else:
            self._batch.fill(views, geometries)
            self._batch.preprocess(self._transform, at, tensor.nbytes, workers=shared_workers())
        return geometries

    def _input_of(self, infer: Infer, images: int) -> Tensor:
        """The bound input, sized for so many images at least."""
        width, height = self.input_size
        tensor: Tensor = infer.inputs[self._spec.name]
        rows = min(infer.bucket_batch(images), self._limit) if self._batched else self._limit
        return tensor.resize((rows, *self._canvas_shape(width, height)))

    # ---- shared machinery ----

    def _input_size(self, spec: TensorSpec) -> tuple[int, int]:
        """(width, height) out of an input of NCHW or NHWC with three channels."""
        if len(spec.shape) != 4:
            raise self._unsupported(f"its input {spec} has not the four dimensions of a batch of images")
        if spec.dtype not in (np.float32, np.float16, np.uint8):
            raise self._unsupported(f"its input {spec} takes neither float32, float16 nor uint8")
        _, channels, height, width = spec.shape
        self._layout: Literal["chw", "hwc"] = "chw"
        if channels != 3 and spec.shape[3] == 3:
            _, height, width, channels = spec.shape
            self._layout = "hwc"
        if isinstance(channels, int) and channels != 3:
            raise self._unsupported(f"its input {spec} has {channels} channels, not 3")
        asked = self._asked_size()
        sides = []
        for side, wanted in zip((width, height), asked or (None, None), strict=True):
            if isinstance(side, int) and wanted not in (None, side):
                raise ConfigError(
                    f"the input of {self.network.model.name} is {width} x {height}; it cannot be set to {asked}"
                )
            sides.append(side if isinstance(side, int) else wanted or self.fallback_size)
        return sides[0], sides[1]

    def _tell_classes(self, count: int | None) -> None:
        """How many classes there are, None while that is open.

        Raises ConfigError when more names were given: they are those of another model.
        """
        self.class_count = count
        if self._given_names is not None and count is not None and len(self.names) > count:
            raise ConfigError(
                f"names has {len(self.names)} names, but {self.network.model.name} tells {count} classes apart; give "
                "it those that it was trained on, in order"
            )

    def _asked_size(self) -> tuple[int, int] | None:
        """The input size that was asked for, for models that leave it open."""
        return None

    def _canvas_shape(self, width: int, height: int) -> tuple[int, int, int]:
        return (3, height, width) if self._layout == "chw" else (height, width, 3)

    def _unsupported(self, why: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.network.model.name} is no model for {type(self).__name__}: {why}")

    def clone(self) -> Self:
        """A second wrapper for another thread, over the same weights or engine."""
        return self._twin(self._batch_limit)

    def _twin(self, most: int | None, *, in_pipeline: bool = False) -> Self:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._batch_limit, twin._in_pipeline = most, in_pipeline
        twin._serving = _Serving(dict(self._serving.settings))
        twin.network = self.network.clone()
        try:
            twin._prepare()
        except BaseException:
            twin.network.close()
            raise
        return twin

    def close(self) -> None:
        """Frees the model. What was submitted and has not begun to run is cancelled."""
        if self._serving.pipeline is not None:
            self._serving.pipeline.close(drain=False)
        if self._path is not None:
            self._path.close()
        self.network.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        width, height = self.input_size
        place = f"{self.network.active_backend} on {self.network.device}"
        return f"<{type(self).__name__} {self.network.model.name}, {width} x {height}, {place}>"


class _Serving:
    """The pipeline of a wrapper, once there is one."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings: Mapping[str, Any] = settings or {}
        self.pipeline: Any = None
        self.guard = Lock()


def as_size(size: int | Sequence[int] | None, what: str) -> tuple[int, int] | None:
    """`640` or `(640, 384)` as (width, height)."""
    if size is None:
        return None
    width, height = (size, size) if isinstance(size, int) else size
    if width < 1 or height < 1:
        raise InputError(f"{what} is a number of pixels or (width, height), not {size!r}")
    return width, height
