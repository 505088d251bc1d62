"""The base class of all wrappers: a model on a backend, from images to results."""

from __future__ import annotations

import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar

import msgspec

from ..core.model_source import ModelLike, ModelSource
from ..errors import ConfigError, UnsupportedModelError
from ..infer import Infer
from ..loading.registry import check_options, load, option_names
from ..pipeline.batch_buffer import check_capacity
from .canvases import Canvases, CanvasPlan, check_free_size, open_size, profiles
from .declaration import UNCHECKED, Declared, argument, nearest_setting, unknown_setting
from .description import ModelDescription, Recognition, Shape
from .details import VisionDetails
from .execution import DevicePostprocess, Execution, ModelStages, Parameters, Timings
from .names import class_names
from .preprocessor import ImageInput, Interpolation, Preprocessor, as_size
from .requests import Requests

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self

    from ..core.backend import Progress
    from ..graph.info import ModelInfo
    from ..image import Geometry, HostImage, ImageSource
    from ..pipeline import BatchBuffer

__all__ = ["VisionModel"]

Result = TypeVar("Result")

#: Settings that say how the network is loaded; `infersdk.load()` takes them.
LOADING = ("device", "precision", "max_batch", "while_building")
#: Members that wrappers add to those of `Requests`, for users.
FOR_USERS = ("backend", "clone", "decode_head_used", "path", "per_call", "task")
#: Arguments of some ways to make requests, which the others do not take.
_OF_REQUESTS = {
    "timeout": "; timeout is an argument of submit()",
    "deadline": "; deadline is an argument of submit() and infer()",
    "in_flight": "; in_flight is an argument of map()",
}
#: Variants of a wrapper, for the settings of calls, that are kept.
MOST_VARIANTS = 32


class VisionModel(Requests[Result], Declared, ABC, Generic[Result]):
    """A model that takes images. A call with one image returns one result, a call with a list returns a list.

    A wrapper has three parts: its settings (annotated attributes with defaults, see `declaration`), `preprocessing()`
    and `postprocess()`. Calls, `stream()`, `submit()`, `map()`, asyncio and configuration files follow from these, on
    every backend, on the processor and on GPUs.

    Args:
        path: the model file, its bytes or an open binary file, or an `Infer` that is loaded already.
        backend: the runtime; see `infersdk.load()`. It is not for an `Infer`.
        device, precision, max_batch, while_building: as `infersdk.load()` takes them.
        options: the backend's own settings, and `external_data`. They may also be given as further keyword arguments.
        names: class names in order: a list, the path of a text file, or `"coco"` or `"imagenet"`. None takes them from
            the model's metadata.
        channel_order: of NumPy arrays that are given as images, `"bgr"` (as in OpenCV), `"rgb"` or `"nv12"`.
        preprocess: where images are preprocessed for a CUDA device: `"device"`, `"host"` (they are resized on the
            processor's threads first), or `"auto"`, which measures both once for each kind of batch. The tensors are
            the same.
        decode: where JPEG files are decoded. `"cpu"`: on the processor, with Pillow's pixels. `"gpu"`: in batches on
            the model's CUDA device, with slightly different pixels; files that it cannot decode are decoded on the
            processor. `"auto"`: on the device, where the model is on one and nvImageCodec is installed. Each result
            has the name of its `decoder`.
        scaled_decode: whether JPEG files are decoded at 1/2, 1/4 or 1/8 of their size, where the network's input is no
            larger. It takes less time, and changes the pixels. It is for `interpolation="bilinear"`.
        interpolation: how images are resized: `"bilinear"` gives the bytes of OpenCV's INTER_LINEAR,
            `"bilinear-antialias"` and `"bicubic"` those of Pillow's BILINEAR and BICUBIC. torchvision, timm and most of
            transformers resize with Pillow's filters. These run on the host, to which images on a GPU are copied. None
            is `"bilinear"`, unless the wrapper finds another one in the model's metadata.
        canvas: `"fixed"` puts each image on the whole input. `"fit"` puts it on the smallest of several canvases that
            holds it at the same size, which saves padding; an ONNX model of a fixed size is changed for that.
        canvas_sizes: (width, height) of the canvases for `"fit"`; None is those of 16:9, 3:2 and 4:3, landscape and
            portrait. The whole input is always one. `choose_canvases()` finds the best ones for given images.
        canvas_border: minimum total padding of a canvas that is shorter than the whole input, in pixels; None is the
            default of the family, which keeps its accuracy.

    Attributes:
        network: the `Infer` underneath.
        settings: all settings as given, as a frozen struct of the type `Settings`. `network` has the device, precision
            and maximum batch in use.
        class_names: the class names by class_id; `()` if there are none.
        input_size: (width, height) of the network's input.
        canvas_sizes_used: (width, height) of each canvas, the whole input last; with `canvas="fixed"` that alone.

    Raises:
        ConfigError: a setting has a wrong value.
        UnsupportedModelError: the model is of another family; the message names the likely one.
        BackendError, ModelError: see `infersdk.load()`.
    """

    path: ModelLike | Infer = argument(kw_only=False)
    backend: str = argument(default="onnxruntime", kw_only=False)
    device: str | None = None
    precision: str | None = None
    max_batch: int | None = None
    while_building: Annotated[str | Mapping[str, Any] | None, UNCHECKED] = None
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    names: Annotated[Sequence[str] | str | os.PathLike[str] | None, UNCHECKED] = None
    channel_order: Literal["bgr", "rgb", "nv12"] = "bgr"
    preprocess: Literal["auto", "device", "host"] = "auto"
    decode: Literal["cpu", "gpu", "auto"] = "cpu"
    scaled_decode: bool = False
    interpolation: Interpolation | None = None
    canvas: Literal["fixed", "fit"] = "fixed"
    canvas_sizes: list[tuple[int, int]] | None = None
    canvas_border: Annotated[int, msgspec.Meta(ge=0)] | None = None

    #: The task, as in Ultralytics' metadata: "detect", "classify", "segment", "pose", ...
    task: ClassVar[str] = ""
    #: Further words for the task in the metadata of files.
    other_tasks: ClassVar[frozenset[str]] = frozenset()
    #: The side of an open input without a requested size.
    fallback_size: ClassVar[int] = 640
    #: Whether `postprocess()` takes its sizes from the outputs and `geometry.canvas`, as `canvas="fit"` needs it.
    fits_canvas: ClassVar[bool] = False
    #: The default of `canvas_border`.
    usual_border: ClassVar[int] = 0
    #: How many outputs its models have; None for any number.
    _outputs: ClassVar[int | None] = None
    #: The layout of heads whose maps it decodes, where the network does not (`RawHead.layout`).
    raw_layout: ClassVar[str | None] = None
    #: The golden samples of the bundle that it was loaded from.
    _golden: Any = None
    #: The settings that one call or request may change: `detector(image, conf=0.5)`.
    per_call: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self, path: ModelLike | Infer, backend: str | None = None, *, _network: Infer | None = None, **settings: Any
    ) -> None:
        name = "onnxruntime" if backend is None else backend
        own, options = _split_settings(type(self), settings, None if isinstance(path, Infer) else name)
        self._set(own)
        loading = loading_settings(own, options)
        if isinstance(path, Infer) and (given := sorted({*loading, *(["backend"] if backend is not None else [])})):
            raise ConfigError(f"{', '.join(given)}: these belong to load(), and this Infer is loaded already")
        source = path if isinstance(path, Infer) else _network or ModelSource.of(path, loading.get("external_data"))
        self.path, self.backend = path, source.backend if isinstance(source, Infer) else name
        model = self._model_to_load(source)
        self._plan = self._canvas_plan(model)
        if isinstance(model, Infer):
            self.network = model
        else:
            source = model if self._plan is None else self._plan.source
            if "profiles" not in loading:
                loading |= profiles(source, name, self._sizes_to_build, self.settings.max_batch)
            self.network = load(source, name, **loading)
        try:
            self._prepare()
        except BaseException:
            self.network.close()
            raise

    def __dir__(self) -> list[str]:
        """The members for users, without the hooks of wrappers: all that the classes of this package add."""
        kinds = [kind for kind in type(self).__mro__ if issubclass(kind, VisionModel)]
        added = {name for kind in kinds if kind.__module__.startswith(f"{__package__}.") for name in vars(kind)}
        hooks = added - {*dir(Requests), *FOR_USERS}
        return [name for name in super().__dir__() if name not in hooks]

    # ---- required of a wrapper ----

    @abstractmethod
    def preprocessing(self, input: ImageInput) -> Preprocessor:
        """The preprocessing of images for this input. Its `channel_order` and `scaled_decode` become those of the
        settings, and its `interpolation` where the settings have one.
        """

    @abstractmethod
    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[Result]:
        """The results of a batch: one for each geometry.

        A function of its arguments and of the settings; any number of threads may call it.

        Args:
            outputs: by name. The first rows belong to the geometries; rows behind them are padding. The next run
                overwrites these arrays, so results keep copies.
            geometries: the place of each image on its canvas; `geometry.to_source(points)` maps back.
        """

    # ---- optional for a wrapper ----

    @classmethod
    def recognises(cls, model: ModelDescription) -> Recognition:
        """Whether a model is one for this wrapper, by the declarations of its file.

        `models.load()` asks all wrappers for the task in the metadata, and takes the one that says yes. The constructor
        and the first run refuse a model if the answer is no.
        """
        if cls.task and model.task is not None and model.task not in (cls.task, *cls.other_tasks):
            return Recognition.no(f"its metadata says that its task is {model.task!r}")
        if odd := [spec for spec in model.outputs if spec.kind != "tensor"]:
            return Recognition.no(f"its output {odd[0]} is not a tensor of numbers")
        if model.raw_head is not None and (layout := model.raw_head.layout) != cls.raw_layout:
            return Recognition.no(
                f'its network ends at the maps of a head of {layout}, and does not decode them; use type "{layout}"'
            )
        if (reason := ImageInput.refuses(model.inputs)) is not None:
            return Recognition.no(reason)
        if cls._outputs not in (None, len(model.outputs)):
            return Recognition.no(f"it has {len(model.outputs)} outputs, and {cls.__name__} reads {cls._outputs}")
        return cls._recognises_outputs(model)

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        """The answer of `recognises()` by the outputs, for a model whose task and inputs suit this wrapper."""
        return Recognition.yes()

    def count_classes(self, shapes: Mapping[str, Shape]) -> int | None:
        """The number of classes by the shapes of the outputs; None where it is open, or there are no classes.

        Called with the shapes that the model declares, and with those of its first run.

        Raises:
            UnsupportedModelError: the shapes are another family's; the message has the reason alone.
        """
        return None

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        """Checks the outputs of the first run.

        Raises:
            UnsupportedModelError: the values are another family's; the message has the reason alone.
        """

    def device_postprocess(self, infer: Infer, capacity: int) -> DevicePostprocess | None:
        """Postprocessing on the stream of `infer`, for batches of up to `capacity`; None for a family without it.

        Without it the outputs are copied to the host, and `postprocess()` runs there.
        """
        return None

    def asked_size(self) -> tuple[int, int] | None:
        """The requested (width, height) of an open input: the setting `size`, where the wrapper has one."""
        return as_size(getattr(self, "size", None), "size")

    def size_to_build(self, model: ModelInfo) -> tuple[int, int] | None:
        """As `asked_size()`, before the network is loaded, for backends that build engines for ranges of shapes."""
        return self.asked_size()

    # ---- calls ----

    @property
    def timings(self) -> Timings:
        """How long the stages of the last call took; zeros before the first. Of a call with a list, `infer` is the
        whole time. `stream()`, requests and calls with `return_exceptions` do not change it.
        """
        return self._execution.timings

    def _run_one(self, source: ImageSource | HostImage, parameters: Mapping[str, Any]) -> Result:
        if parameters:
            self._with(parameters)  # raises ConfigError for parameters that a call cannot have
        with self._idle, self._calls:
            return self._execution.call(source, parameters or None, timed=True)

    def _run_all(self, sources: Sequence[ImageSource | HostImage], parameters: Mapping[str, Any]) -> list[Result]:
        start = perf_counter()
        results = list(self.stream(sources, **parameters))
        self._execution.timings = Timings(infer=perf_counter() - start)
        return results

    def stream(
        self, images: Iterable[ImageSource | HostImage], *, return_exceptions: bool = False, **parameters: Any
    ) -> Iterator[Result]:
        """The results of any number of images, in order.

        Files and encoded bytes are decoded on all processors. Images are read ahead: on a processor one for each core,
        or a batch; on a GPU the batches on the device and one more. With `canvas="fit"`, up to three batches wait for
        other images of their canvas.

        Args:
            return_exceptions: return the exception of an image in place of its result. The images then become requests,
                as with `map()`.
        """
        self._with(parameters)  # raises ConfigError for parameters that a call cannot have
        return super().stream(images, return_exceptions=return_exceptions, **parameters)

    def _stream(self, images: Iterable[ImageSource | HostImage], parameters: Mapping[str, Any]) -> Iterator[Result]:
        with self._idle:
            yield from self._calls.each(self._execution.stream(images, parameters or None))

    def _warm_up_calls(self, progress: Progress | None, example: ImageSource | HostImage | None) -> None:
        self._execution.warm_up(progress, example)

    # ---- for pipelines ----

    def _batch_buffer(self, capacity: int | None) -> BatchBuffer:
        """For a pipeline: batches of up to `capacity` images."""
        free = self._input.spec.has_free_batch
        check_capacity(self.network, capacity, None if free else self._limit)
        if capacity is None and free and self.network.scheduling.one_core_clones:
            capacity = 1  # a core takes less time for one image after another: a batch does not fit its caches
        return self._execution.new_buffer(capacity=capacity, of_pipeline=True)

    @property
    def details(self) -> VisionDetails:
        """Its details, for pipelines, commands, the server and benchmarks."""
        return VisionDetails(self)

    # ---- one model, several of them ----

    def clone(self) -> Self:
        """A second wrapper for another thread, over the same weights or engine."""
        twin = self._copied()
        twin.network = self.network.clone()
        try:
            twin._start(self._pipeline_holder.settings)
        except BaseException:
            twin.network.close()
            raise
        return twin

    def __repr__(self) -> str:
        width, height = self.input_size
        network = self.network
        return (
            f"<{type(self).__name__} {network.model.name}, {width} x {height}, {network.active_backend} on "
            f"{network.device}>"
        )

    # ---- internals ----

    def _release_networks(self) -> None:
        self._execution.release()
        self.network.release()

    def _close_networks(self) -> None:
        self._execution.close()
        self.network.close()

    def _prepare(self) -> None:
        """Checks the model, and makes the parts that calls use."""
        model = self._description = ModelDescription.of(self.network)
        network = self.network  # with `while_building`, one that runs on the host may move to a device
        if self.settings.preprocess == "device" and network.stream is None and not network.scheduling.serializes_runs:
            raise ConfigError(
                f"preprocess='device' needs a model on a CUDA device, and {model.name} is on {network.device}; use "
                "preprocess='auto'"
            )
        self._learned = _Learned()
        self.class_names = model.names if self.settings.names is None else class_names(self.settings.names)
        self._check(model)
        own = self._without_pipeline()
        try:
            asked = self.asked_size() if self._plan is None else self._plan.sizes[-1]
            self._input = ImageInput.of(self.network.input_specs, asked, self.fallback_size)
            check_free_size(self._input, self.network.metadata, model.name)
            self.input_size = self._input.size
            sizes, border = ((), 0) if self._plan is None else (self._plan.sizes, self._plan.border)
            canvases = Canvases(self._input, own._preprocessor, sizes, border)
        except UnsupportedModelError as error:
            raise self._unsupported(str(error), model) from None
        self.canvas_sizes_used = canvases.sizes
        self._stages = ModelStages(
            canvases, own._verify, lambda parameters: own._with(parameters).postprocess, own.device_postprocess,
            self.decode, self.settings.preprocess,
        )  # fmt: skip
        self._variants: dict[bytes, Self] = {}  # by the settings of calls; clones share them
        self._start({})

    def _preprocessor(self, input: ImageInput) -> Preprocessor:
        made = self.preprocessing(input)
        return replace(
            made,
            channel_order=self.channel_order,
            scaled_decode=self.scaled_decode,
            interpolation=self.interpolation or made.interpolation,
        )

    def _model_to_load(self, model: ModelSource | Infer) -> ModelSource | Infer:
        """The model as this wrapper loads it."""
        return model

    def _canvas_plan(self, model: ModelSource | Infer) -> CanvasPlan | None:
        """How the model is loaded for several canvases; None for one."""
        if self.settings.canvas == "fixed":
            for name in ("canvas_sizes", "canvas_border"):
                if getattr(self.settings, name) is not None:
                    raise ConfigError(f"{name} is for canvas='fit'; add that, or leave {name} out")
            return None
        if not self.fits_canvas:
            raise ConfigError(f"canvas='fit' is not for {type(self).__name__}; use canvas='fixed'")
        border = self.usual_border if self.settings.canvas_border is None else self.settings.canvas_border
        return CanvasPlan.of(model, self.asked_size(), self.fallback_size, self.settings.canvas_sizes, border)

    def _sizes_to_build(self, model: ModelInfo) -> Sequence[tuple[int, int]]:
        """The sizes of the input for a backend that builds for ranges of shapes; none where the model has its own."""
        if self._plan is not None:
            return self._plan.sizes
        return open_size(model, self.size_to_build(model), self.fallback_size)

    def _start(self, pipeline_settings: Mapping[str, Any]) -> None:
        super()._start(pipeline_settings)
        self._limit = self._input.batch_limit(self.network)
        self._execution: Execution[Result] = Execution(self.network, self._stages)

    def _with(self, parameters: Parameters) -> Self:
        """This wrapper with other settings, for postprocessing alone."""
        if not parameters:
            return self
        key = _exactly(parameters)
        variant: Self | None = self._variants.get(key) if key is not None else None
        if variant is None:
            if unknown := sorted(set(parameters) - self.per_call):
                hint = _OF_REQUESTS.get(unknown[0]) or nearest_setting(unknown[0], self.per_call)
                raise ConfigError(
                    f"{unknown[0]!r} cannot be given with a call of {type(self).__name__}; use "
                    f"{', '.join(sorted(self.per_call)) or 'none'}{hint}"
                )
            variant = self._copied()
            own = parameters if key is None else dict(pickle.loads(key))  # a copy: arrays of the caller may change
            variant._set({**msgspec.structs.asdict(self.settings), **own})
            variant._varied()
            if key is None:
                return variant
            if len(self._variants) >= MOST_VARIANTS:
                self._variants.clear()
            self._variants[key] = variant
        return variant

    def _by_settings(self, parameters: Sequence[Parameters]) -> Iterator[tuple[Self, Sequence[int]]]:
        """The rows of a batch by their settings, each time with the wrapper that has these settings."""
        if not any(parameters):
            yield self, range(len(parameters))
            return
        variants = [self._with(own) for own in parameters]
        for model in {id(model): model for model in variants}.values():
            yield model, [row for row, other in enumerate(variants) if other is model]

    def _varied(self) -> None:
        """Drops everything cached from the previous settings of this copy."""

    def _verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        shapes = {name: array.shape for name, array in outputs.items()}
        model = self._description.with_shapes(shapes, self.input_size)
        self._check(model)
        try:
            self.verify(outputs)
        except UnsupportedModelError as error:
            raise self._unsupported(str(error), model) from None

    def _check(self, model: ModelDescription) -> None:
        """Refuses models of other families, by the known shapes."""
        if (known := self.recognises(model)).answer == "no":
            raise self._unsupported(known.because, model)
        self._learned.shapes = model.shapes
        try:
            count = self.count_classes(self._learned.shapes)
        except UnsupportedModelError as error:
            raise self._unsupported(str(error), model) from None
        self._learned.class_count = count
        if count is not None and self.class_names and len(self.class_names) != count:
            source = "names has" if self.settings.names is not None else "its metadata has"
            raise self._unsupported(
                f"it has {count} classes, but {source} {len(self.class_names)} names; give one for each, in order",
                model,
            )

    def _unsupported(self, why: str, model: ModelDescription) -> UnsupportedModelError:
        from .registry import looks_like  # the wrappers, of which only a refusal needs all

        name, kind = self.network.model.name, type(self).__name__
        error = UnsupportedModelError(f"{name} is not a model for {kind}: {why}. It looks like {looks_like(model)}")
        error.reason = why
        return error


def _exactly(parameters: Mapping[str, Any]) -> bytes | None:
    """A key of these values, in which True is not 1; None where a value cannot be pickled."""
    try:
        return pickle.dumps(sorted(parameters.items()))
    except Exception:  # a type may raise anything
        return None


def loading_settings(own: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `load()` that are given.

    Args:
        own: settings of a wrapper.
        options: options of the backend that are given as keyword arguments.
    """
    table = own.get("options", {})
    check_options(table, "options", ("model", "backend", *LOADING), options)
    given = {name: own[name] for name in LOADING if own.get(name) is not None}
    return {**given, **table, **options}


def _split_settings(
    kind: type[VisionModel[Any]], given: Mapping[str, Any], backend: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the wrapper, and the rest, which is for `load()` with this backend.

    Args:
        backend: None where the network is loaded already.
    """
    own = {name: value for name, value in given.items() if name in kind.Settings.__struct_fields__}
    options = {name: value for name, value in given.items() if name not in own}
    known = loading_names(backend) if backend is not None and options else set()
    if unknown := sorted(options.keys() - known):
        others = f"the options of backend {backend!r} are {', '.join(sorted(known))}"
        raise unknown_setting(kind, unknown[0], others if backend is not None else "", known)
    return own, options


def loading_names(backend: str) -> set[str]:
    """What `infersdk.load()` takes by name with this backend: its own arguments, and the backend's options."""
    return {*(load.__kwdefaults__ or ()), *option_names(backend)}


@dataclass
class _Learned:
    """Properties of a model from its file and its first run; its clones and variants share them.

    Attributes:
        class_count: see `VisionDetails.class_count`.
        shapes: of the outputs, by name.
        probabilities: whether the scores of a classifier are probabilities; None before a run has shown it.
    """

    class_count: int | None = None
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    probabilities: bool | None = None
