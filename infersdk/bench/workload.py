"""The workload of a combination: a loaded model, its inputs, and a call."""

from __future__ import annotations

import itertools
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import files as _files
from ..errors import ConfigError, UnsupportedModelError
from ..image import read_image
from ..loading.samples import random_inputs, read_samples
from ..models import ModelDescription, VisionModel, fitting_types, wrapper_type
from ..models import load as load_wrapper
from ..models.loading import run_once, source_of_wrapper
from ..models.raw_head import head_cut_off
from ..pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..core.model_source import ModelLike
    from ..infer import Infer
    from .plan import BenchSettings, Combination

__all__ = ["Workload", "check_batch", "image_files", "kind_of"]

#: The kind of a model without a wrapper.
ARRAYS = "arrays"


class Workload:
    """A loaded model with its inputs.

    Args:
        load: loads another form of the model, with the arguments of `infer`.

    Attributes:
        kind: the wrapper's name, or `"arrays"`.
        model: the wrapper; None for arrays. Its network is `infer`, or, where `models.load()` would load the model
            without the decoding of its head, one of its own that does.
        decode_head: `"native"` or `"graph"`, as the wrapper has it; None for one without a head, and for arrays.
        items: requests for a pipeline, in the order in which they are sent; none where requests cannot share a run.

    Raises:
        ConfigError: the batch does not fit the model, or there is nothing to run it on.
        UnsupportedModelError: the wrapper does not fit the model.
    """

    def __init__(
        self, infer: Infer, combination: Combination, settings: BenchSettings, load: Callable[[ModelLike], Infer]
    ) -> None:
        self.infer, self.batch = infer, combination.batch
        self._settings = settings
        check_batch(infer, self.batch)
        self.kind = settings.type if settings.type is not None else self._find_kind()
        self.model: VisionModel[Any] | None = None
        if self.kind != ARRAYS:
            network = self._network_of_wrapper(combination, load)
            self.model = load_wrapper(network, type=self.kind, **settings.wrapper)
        self.decode_head: str | None = getattr(self.model, "decode_head_used", None)
        if self.model is not None:
            files = image_files(settings)
            self.items: list[Any] = [str(file) if settings.from_files else read_image(file) for file in files]
            self._next = itertools.cycle(self.items)
            images = [read_image(item) for item in itertools.islice(itertools.cycle(self.items), self.batch)]
            feeds = next(iter(self.model.details.network_inputs(images, batch=self.batch)))
        else:
            feeds = self._feeds = self._arrays()
            rows = self.batch if all(spec.shape for spec in infer.input_specs) else 0
            self.items = [{name: array[i] for name, array in feeds.items()} for i in range(rows)]
        for name, array in feeds.items():  # for the network alone to run on
            np.copyto(infer.inputs[name].resize(array.shape).numpy(writable=True), array)
        infer.forward()

    def _network_of_wrapper(self, combination: Combination, load: Callable[[ModelLike], Infer]) -> Infer:
        """The network of the wrapper; see `model`."""
        settings, target = self._settings, combination.target
        asked = settings.wrapper.get("decode_head", "auto")
        alone = settings.scenarios is not None and set(settings.scenarios) <= {"engine", "engine_parallel"}
        if alone and asked != "native" and not (settings.annotations or settings.labels):
            return self.infer  # results are not needed
        source = source_of_wrapper(
            combination.model, target.backend, type=self.kind, device=target.device, decode_head=asked
        )
        return load(source) if asked == "native" or head_cut_off(source) is not None else self.infer

    @property
    def notes(self) -> list[str]:
        """Notes for readers of the figures, a line each."""
        if self.model is None or self.model.network is self.infer:
            return []
        return [
            "calls and requests run the network without the decoding of its head, which is native, as models.load() "
            "loads it; engine and agreement are of the whole network, and memory holds both"
        ]

    def _find_kind(self) -> str:
        """As `kind_of`. Where the file leaves the shapes of outputs open, those of a run on an empty image count."""
        model = ModelDescription.of(self.infer)
        if model.has_open_outputs:
            model = run_once(self.infer, model, self.batch)
        return kind_of(model, self._settings.wrapper)

    def _arrays(self) -> dict[str, Any]:
        """Samples of the data for a whole batch, or random arrays."""
        specs, settings, batch = self.infer.input_specs, self._settings, self.batch
        if settings.data is None:
            return random_inputs(specs, batch=batch, seed=settings.seed, shapes=settings.shapes_of(batch))
        result = list(itertools.islice(read_samples(settings.data, specs, shapes=settings.shapes), batch))
        if batch == 1 or not all(spec.has_free_batch for spec in specs):
            return dict(result[0])
        rows = {name: np.concatenate([sample[name] for sample in result]) for name in result[0]}
        return {name: np.resize(array, (batch, *array.shape[1:])) for name, array in rows.items()}

    def samples(self) -> Iterator[Mapping[str, Any]]:
        """Inputs for comparing outputs, the same for each combination of a model.

        They are the preprocessed images of a wrapper, samples of the data, or random arrays.
        """
        settings, specs = self._settings, self.infer.input_specs
        if self.model is not None:
            yield from self.model.details.network_inputs(image_files(settings), batch=1)
        elif settings.data is not None:
            yield from itertools.islice(
                read_samples(settings.data, specs, shapes=settings.shapes), settings.max_samples
            )
        else:
            for i in range(4):
                yield random_inputs(specs, seed=settings.seed + i, shapes=settings.shapes)

    def call(self) -> dict[str, float]:
        """One call with a whole batch, from inputs to results: the seconds of its stages."""
        return self._call_model(self.model) if self.model is not None else self._call_arrays()

    def _call_model(self, model: VisionModel[Any]) -> dict[str, float]:
        images = [next(self._next) for _ in range(self.batch)]
        model(images[0] if self.batch == 1 else images)
        spent = model.timings
        if self.infer.stream is not None or self.batch > 1:
            # Stages overlap, or are queued on the device. The row subtracts the time of the scenario "engine".
            return {"whole": spent.total}
        read = {"read": spent.read} if self._settings.from_files else {}
        after = {"copy": 0.0, "engine": spent.infer, "postprocess": spent.postprocess}
        return {**read, "preprocess": spent.preprocess, **after}

    def _call_arrays(self) -> dict[str, float]:
        """What `infer(x)` does, stage by stage."""
        infer, start = self.infer, perf_counter()
        for name, array in self._feeds.items():
            tensor = infer.inputs[name]
            np.copyto(tensor.numpy(writable=True), array)
            if infer.stream is not None:
                tensor.device_ptr()  # copies it to the device
        filled = perf_counter()
        infer.forward()
        ran = perf_counter()
        for tensor in infer.outputs.values():
            tensor.numpy().copy()
        return {"copy": perf_counter() - ran + filled - start, "engine": ran - filled}

    def open_pipeline(self) -> Pipeline[Any]:
        """A pipeline over the model, for requests of one image or row.

        Raises:
            UnsupportedModelError: requests cannot share a run.
        """
        if not self.items:
            raise UnsupportedModelError("an input has no batch axis, so requests cannot share a run")
        return Pipeline(self.model if self.model is not None else self.infer, max_batch=self.batch)


def check_batch(infer: Infer, batch: int) -> None:
    """Raises ConfigError unless the model can be run with that batch."""
    for spec in infer.input_specs:
        if spec.fixed_batch not in (None, batch):
            raise ConfigError(
                f"input {spec} has a fixed batch of {spec.fixed_batch}, not {batch}; export it with a free batch axis"
            )


def kind_of(model: ModelDescription, wrapper: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The name of the wrapper that fits a model, or `"arrays"` if none fits.

    It is `"arrays"` too for class maps if neither the file nor the settings of the `wrapper` define the pixel format.

    Raises:
        UnsupportedModelError: several fit, and the file does not say which is right.
    """
    fitting = fitting_types(model)
    if len(fitting) > 1:
        wrapper_type(model)  # raises
    if fitting == ["segmentation"] and model.task is None and "preset" not in wrapper:
        return ARRAYS
    return fitting[0] if fitting else ARRAYS


def image_files(settings: BenchSettings) -> list[Path]:
    """The images that are run for speed: of the data, spread evenly, or the packaged one.

    Raises:
        ConfigError: the folder has none.
    """
    if settings.data is None:
        from ..data import IMAGE

        return [IMAGE]
    data = Path(settings.data)
    every = _files.image_files(data, recursive=True) if data.is_dir() else [data]
    if not every:
        raise ConfigError(f"no image in {str(data)!r}")
    step = max(len(every) / settings.max_samples, 1.0)
    return [every[int(i * step)] for i in range(min(len(every), settings.max_samples))]
