"""From a bundle to a wrapper that is checked against the golden samples."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..core.cache import Cache, key_of
from ..core.device import Device
from ..core.stream import device_info, nvidia_driver
from ..core.target import arithmetic_of
from ..core.text import logger
from ..errors import BundleFormatError, ConfigError, GoldenSampleError, ModelError, OutputError
from ..loading.registry import load as load_network
from .bundle import Bundle
from .golden import Golden, GoldenReport, Graph, check, check_network
from .layers import layer_values

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

    from ..core.model_source import ModelSource
    from .sealing import KeySource

__all__ = ["VERIFY", "GoldenSamples", "load_bundle"]

_log = logger("infersdk.bundles")

#: When the golden samples are run: on the first load on a machine, on each, or on none.
VERIFY = ("first", "always", "never")


def load_bundle(
    path: str | os.PathLike[str],
    load: Callable[[ModelSource, str, dict[str, Any]], Any],
    *,
    type: str | None,
    settings: Mapping[str, Any],
    key: KeySource | None,
    trust: str | os.PathLike[str] | None,
    verify: Literal["first", "always", "never"],
) -> Any:
    """The wrapper of a bundle, with the bundle's settings where `settings` has no others.

    Args:
        load: loads a model with the wrapper of a name and its settings.
        type: the wrapper that is required; None is the bundle's.
        key, trust: see `Bundle`.
        verify: when the golden samples are run. A pass is kept in the cache for the bundle, backend, device and
            versions. With `while_building` they are also run on the network that was built, before it serves.

    Raises:
        BundleError: the bundle is not used, or its golden samples differ; see `infersdk.errors`.
        ConfigError: `type` is another wrapper than the bundle's, or `verify` is none of `VERIFY`.
    """
    if verify not in VERIFY:
        raise ConfigError(f"verify is one of {', '.join(VERIFY)}, not {verify!r}")
    bundle = Bundle(path, key=key, trust=trust)
    manifest = bundle.manifest
    if type is not None and type != manifest.type:
        raise ConfigError(f"{bundle.path!r} is for the wrapper {manifest.type!r}, not {type!r}; leave type= out")
    samples = GoldenSamples(bundle, {"key": key, "trust": trust})
    source, feeds = bundle.source(settings.get("precision")), Future[Any]()
    swapped = settings.get("while_building") is not None and verify != "never"
    if swapped:
        source.approve = lambda network: samples.approve(network, feeds.result(), settings.get("precision"))
    model = None
    try:
        model = load(source, manifest.type, {**manifest.settings, **settings})
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
        names = [self._golden.values, *(sample.image for sample in self._golden.samples)]
        self._parts = {name: bundle.read(name) for name in names}

    def check(self, model: Any) -> GoldenReport:
        """Compares the wrapper of the bundle with the samples.

        Raises:
            GoldenSampleError, BundleFormatError, ConfigError: the samples cannot be compared; see `golden.check()`.
        """
        return check(self._golden, self._parts, model, self._classes, partial(self._layers, model))

    def verify(self, model: Any, *, once: bool = False) -> None:
        """As `check()`. A pass is kept in the cache.

        Args:
            once: whether a pass in the cache counts.

        Raises:
            GoldenSampleError: the samples differ.
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
        return [
            model.details.run_once(self._parts[sample.image], self._golden.parameters)[0]
            for sample in self._golden.samples
        ]

    def approve(self, network: Any, feeds: Sequence[Mapping[str, npt.NDArray[Any]]], required: str | None) -> None:
        """Compares a network that a wrapper is about to change to.

        Args:
            feeds: from `feeds()`.
            required: the precision that was required, if any.

        Raises:
            GoldenSampleError: the outputs differ.
            ConfigError: there are no tolerances for its precision.
        """
        precision = arithmetic_of(network.precision, network.device, required)
        report = check_network(self._golden, self._parts, network, feeds, precision)
        if not report.passed:
            raise _difference(self._path, network.backend, report)

    def _layers(
        self, model: Any, graph: Graph, feed: Mapping[str, npt.NDArray[Any]]
    ) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """The intermediate values of the model; none where the file is another one by now."""
        network = model.network
        try:
            bundle = Bundle(self._path, **self._secrets)
        except ModelError:
            return
        if bundle.digest != self._digest:
            return
        source = bundle.source(network.precision).with_passes(*network.model.passes)
        place = {"backend": network.backend, "device": network.device, "precision": model.settings.precision}
        for name, _, array in layer_values(source, feed, lambda one: load_network(one, **place)):
            yield name, array


def _difference(path: str, backend: str, report: GoldenReport) -> GoldenSampleError:
    error = GoldenSampleError(f"{path!r} on {backend}: {report}")
    error.report = report
    return error


def _place(model: Any) -> dict[str, Any]:
    """Where the results of a model are computed: all that may change them."""
    from .. import __version__

    network = model.network
    runtime = sys.modules.get(network.backend.replace("-", "_"))
    return {
        "backend": network.backend, "runtime": str(getattr(runtime, "__version__", "")),
        "device": network.device, "processor": _processor(network.device), "infersdk": __version__,
        "settings": repr(model.settings),
    }  # fmt: skip


def _processor(device: str) -> list[str]:
    """The GPU with its driver, or the architecture and the system."""
    if Device.parse(device).kind != "cuda":
        return [platform.machine(), platform.version()]
    info = device_info(device)
    return [info["name"], str(info["compute_capability"]), nvidia_driver()]
