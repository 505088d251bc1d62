"""From a bundle to a wrapper that is checked against the golden samples."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from .. import __version__
from ..core.cache import Cache, key_of
from ..core.device import Device
from ..core.processors import processor_digest
from ..core.stream import device_info, nvidia_driver
from ..core.target import arithmetic_of
from ..core.text import logger
from ..errors import BundleFormatError, ConfigError, GoldenSampleError, ModelError, OutputError
from ..models.loading import named_type
from ..models.registry import ALIASES
from .bundle import Bundle
from .golden import (
    INPUT_ELEMENTS,
    LAYER_ELEMENTS,
    OUTPUT_ELEMENTS,
    Golden,
    GoldenReport,
    Graph,
    Limits,
    Values,
    deviation,
    elements,
    same_results,
)
from .layers import layer_values

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

    from .sealing import KeySource

__all__ = ["VERIFY", "GoldenSamples", "load_bundle"]

_log = logger("infersdk.bundles")

#: Differences of inputs: images are preprocessed with the same bits everywhere, so this is the rounding of float16.
_INPUT_TOLERANCE = 2.0**-10
#: When the golden samples are run: on the first load on a machine, on each, or on none.
VERIFY = ("first", "always", "never")


def load_bundle(
    path: str | os.PathLike[str],
    backend: str | None,
    *,
    type: str | None,
    settings: Mapping[str, Any],
    key: KeySource | None,
    trust: str | os.PathLike[str] | None,
    verify: Literal["first", "always", "never"],
) -> Any:
    """The wrapper of a bundle, with the bundle's settings where `settings` has no others.

    Args:
        type: the wrapper that is required; None is the bundle's.
        key, trust: see `Bundle`.
        verify: when the golden samples are run. A pass is kept in the cache for the bundle, backend, device and
            versions. With `while_building` they are also run on the network that was built, before it serves.

    Raises:
        BundleError: the bundle is not used, or its golden samples differ; see `infersdk.errors`.
        ConfigError: `type` is another wrapper than the bundle's, or `verify` is not in `VERIFY`.
    """
    if verify not in VERIFY:
        raise ConfigError(f"verify is one of {', '.join(VERIFY)}, not {verify!r}")
    bundle = Bundle(path, key=key, trust=trust)
    manifest = bundle.manifest
    if type is not None and ALIASES.get(type, type) != manifest.type:
        raise ConfigError(f"{bundle.path!r} is for the wrapper {manifest.type!r}, not {type!r}; leave type= out")
    merged = {**manifest.settings, **settings}
    samples = GoldenSamples(bundle, {"key": key, "trust": trust})
    source, feeds = bundle.source(settings.get("precision")), Future[Any]()
    swapped = settings.get("while_building") is not None and verify != "never"
    if swapped:
        source.approve = lambda network: samples.approve(network, feeds.result(), settings.get("precision"))
    model = None
    try:
        model = named_type(manifest.type)(source, backend, **merged)
        model.path = bundle.path  # not the source, which would keep the model in memory after close()
        if verify != "never":
            samples.verify(model, once=verify == "first")
        if swapped:
            feeds.set_result(samples.feeds(model))
    except BaseException:
        feeds.cancel()  # the thread that builds waits for it
        if model is not None:
            model.close()
        raise
    model.details.golden_samples = samples
    return model


class GoldenSamples:
    """The golden samples of a bundle that is loaded.

    Args:
        bundle: its samples are read now.
        secrets: `key` and `trust`, for reading the model again.

    Raises:
        BundleError: the samples cannot be read.
    """

    def __init__(self, bundle: Bundle, secrets: Mapping[str, Any]) -> None:
        self._path, self._digest, self._secrets = bundle.path, bundle.digest, secrets
        self._name, self._classes = bundle.manifest.name, bundle.manifest.classes
        content = bundle.read(bundle.manifest.golden)
        try:
            self._golden = msgspec.json.decode(content, type=Golden)
        except (ValueError, RecursionError) as error:
            raise BundleFormatError(f"{self._path!r}: its golden samples are damaged: {error}") from None
        for name in (self._golden.values, *(sample.image for sample in self._golden.samples)):
            if name not in bundle.manifest.parts:
                raise BundleFormatError(f"{self._path!r}: its golden samples name the part {name!r}, and it has none")
        self._images = [bundle.read(sample.image) for sample in self._golden.samples]
        values = bundle.read(self._golden.values)
        self._values = np.frombuffer(values, "<f4", len(values) // 4)

    def check(self, model: Any) -> GoldenReport:
        """Compares the wrapper of the bundle with the samples.

        Raises:
            GoldenSampleError: the network has other outputs than those of the samples.
            ConfigError: there are no tolerances for the precision of the network.
            BundleFormatError: the samples are damaged.
        """
        if list(model.class_names) != self._classes:
            return GoldenReport("classes")
        parameters = self._golden.parameters
        for number, (sample, image) in enumerate(zip(self._golden.samples, self._images, strict=True)):
            feed, outputs, result = model.details.run_once(image, parameters)
            for name, values in sample.inputs.items():
                found = self._deviation(values, feed.get(name), INPUT_ELEMENTS)
                if found > _INPUT_TOLERANCE:
                    return GoldenReport("preprocessing", name, found, _INPUT_TOLERANCE, samples=number)
            precision = arithmetic_of(model.network.precision, model.network.device, model.settings.precision)
            report = self._compared(number, model.network, outputs, precision, partial(self._layers, model, feed))
            if report is not None:
                return report
            limits = Limits.of(precision, parameters.get("conf", 0.0))
            if not same_results(sample.results, result().to_dicts(), limits):
                return GoldenReport("postprocessing", samples=number)
        return GoldenReport(samples=len(self._images))

    def verify(self, model: Any, *, once: bool = False) -> None:
        """As `check()`, but raises GoldenSampleError if the samples differ. A pass is kept in the cache. With `once`, a
        kept one counts.
        """
        cache, name = Cache(), key_of({"kind": "golden samples", "bundle": self._digest, **_place(model)})
        if once and cache.get(name) is not None:
            return
        report = self.check(model)
        if not report.passed:
            cache.remove(name)
            raise _difference(self._path, model.network.active_backend, report)
        _log.info("%s on %s: %s", self._path, model.network.active_backend, report)
        try:
            cache.put(name, b"passed", kind="golden samples", backend=model.network.backend, label=self._name)
        except OutputError as error:
            _log.info("the golden samples of %s are run on each load: %s", self._path, error)

    def feeds(self, model: Any) -> list[Mapping[str, npt.NDArray[Any]]]:
        """The input of the network for each sample."""
        return [model.details.run_once(image, self._golden.parameters)[0] for image in self._images]

    def approve(self, network: Any, feeds: list[Mapping[str, npt.NDArray[Any]]], required: str | None) -> None:
        """Compares a network that a wrapper is about to change to.

        Args:
            feeds: from `feeds()`. They are removed: the caller keeps the list as long as the network.
            required: the precision that was required, if any.

        Raises:
            GoldenSampleError: the outputs differ.
            ConfigError: there are no tolerances for its precision.
        """
        precision = arithmetic_of(network.precision, network.device, required)
        for number in range(len(self._images)):
            report = self._compared(number, network, network(dict(feeds.pop(0))), precision, tuple)
            if report is not None:
                raise _difference(self._path, network.backend, report)

    def _compared(
        self,
        number: int,
        network: Any,
        outputs: Mapping[str, npt.NDArray[Any]],
        precision: str,
        layers: Callable[[], Iterable[tuple[str, npt.NDArray[Any]]]],
    ) -> GoldenReport | None:
        """The first output of a sample that differs; None where all agree.

        Outputs whose shape depends on the image may have other rows by rounding: such ones are not compared. `layers`
        computes the intermediate values for the sample, in order.
        """
        graph = self._graph_of(number, network, outputs, precision)
        tolerances = graph.tolerances[precision]
        for name, values in graph.outputs[number].items():
            if name not in tolerances or outputs[name].shape != values.shape:
                continue
            found = self._deviation(values, outputs[name], OUTPUT_ELEMENTS)
            if found > tolerances[name]:
                layer = self._first_layer(graph, layers(), max(tolerances.values()))
                return GoldenReport("network", name, found, tolerances[name], layer, number)
        return None

    def _graph_of(self, number: int, network: Any, outputs: Mapping[str, npt.NDArray[Any]], precision: str) -> Graph:
        """The graph with these outputs for a sample, and a tolerance for this precision."""
        specs = {spec.name: spec for spec in network.output_specs}
        graphs = [
            graph
            for graph in self._golden.graphs
            if graph.outputs[number].keys() == outputs.keys()
            and all(
                values.shape == outputs[name].shape or specs[name].fits(values.shape)
                for name, values in graph.outputs[number].items()
            )
        ]
        if not graphs:
            found = ", ".join(f"{name} {array.shape}" for name, array in outputs.items())
            raise GoldenSampleError(f"the network has the outputs {found}, and the golden samples have none of these")
        for graph in graphs:
            if precision in graph.tolerances:
                return graph
        raise ConfigError(
            f"the bundle has tolerances of its golden samples for {', '.join(graphs[0].tolerances)}, not for "
            f"{precision}; pack it with forms={{{precision!r}: ...}}, or load it with verify='never'"
        )

    def _first_layer(self, graph: Graph, layers: Iterable[tuple[str, npt.NDArray[Any]]], allowed: float) -> str | None:
        for name, array in layers:
            if name in graph.layers:
                node, values = graph.layers[name]
                # A channel has too few elements for a scale of its own.
                if self._deviation(values, array, LAYER_ELEMENTS, channels=False) > allowed:
                    return node
        return None

    def _deviation(self, values: Values, array: npt.NDArray[Any] | None, most: int, *, channels: bool = True) -> float:
        """The deviation of an array from stored values; infinity where it is missing or has another shape."""
        kept = self._values[values.offset : values.offset + values.count(most)]
        if values.offset < 0 or len(kept) < values.count(most):
            raise BundleFormatError(f"{self._path!r}: its golden samples name values that it does not have")
        if array is None or tuple(array.shape) != values.shape:
            return math.inf
        return deviation(kept, elements(array, most), values.shape if channels else kept.shape, most)

    def _layers(self, model: Any, feed: Mapping[str, npt.NDArray[Any]]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """The intermediate values of the model; none where the file is another one by now."""
        network = model.network
        try:
            bundle = Bundle(self._path, **self._secrets)
        except ModelError:
            return
        if bundle.digest != self._digest:
            return
        source = bundle.source(network.precision).with_passes(*network.model.passes)
        values = layer_values(
            source, feed, backend=network.backend, device=network.device, precision=model.settings.precision
        )
        yield from ((name, array) for name, _, array in values)


def _difference(path: str, backend: str, report: GoldenReport) -> GoldenSampleError:
    error = GoldenSampleError(f"{path!r} on {backend}: {report}")
    error.report = report
    return error


def _place(model: Any) -> dict[str, Any]:
    """Where the results of a model are computed: all that may change them."""
    network = model.network
    runtime = sys.modules.get(network.backend.replace("-", "_"))
    options = msgspec.structs.asdict(network.options)
    return {
        "backend": network.backend, "runtime": str(getattr(runtime, "__version__", "")),
        "device": network.device, "processor": _processor(network.device), "infersdk": __version__,
        "settings": repr(model.settings),
        "options": repr({name: value for name, value in options.items() if not callable(value)}),
    }  # fmt: skip


def _processor(device: str) -> list[str]:
    """The GPU with its driver, or the architecture, the system and the processor."""
    if Device.parse(device).kind != "cuda":
        return [platform.machine(), platform.version(), processor_digest()]
    info = device_info(device)
    return [info["name"], str(info["compute_capability"]), nvidia_driver()]
