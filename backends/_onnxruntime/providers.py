"""Execution providers: from the name of a device to sessions on it.

A provider is built into the installed ONNX Runtime, or is a library in another package. The module of such a package
has `get_library_path()` and `get_ep_name()`.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from ...core.device import Device
from ...errors import DeviceUnavailableError, text_of

__all__ = ["FAILURES", "Provider", "available_devices", "find_provider", "provider_device"]

#: The exceptions of the runtime: its own, which have no common base, and those of Python that its bindings raise.
#: Others pass through, such as that of a signal handler.
FAILURES: tuple[type[Exception], ...] = (
    RuntimeError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, MemoryError,
    *(kind for kind in vars(ort_errors).values() if isinstance(kind, type) and issubclass(kind, Exception)),
)  # fmt: skip


class _Known(NamedTuple):
    provider: str
    package: str
    hardware: str = ""  # the option of the provider that selects the hardware, where the provider is built in


#: Devices with their providers, and the packages to install.
_KNOWN = {
    "cpu": _Known("CPUExecutionProvider", "onnxruntime"),
    "cuda": _Known("CUDAExecutionProvider", "infersdk[gpu]"),
    "coreml": _Known("CoreMLExecutionProvider", "onnxruntime"),
    "directml": _Known("DmlExecutionProvider", "onnxruntime-directml"),
    "migraphx": _Known("MIGraphXExecutionProvider", "onnxruntime-migraphx"),
    "openvino": _Known("OpenVINOExecutionProvider", "onnxruntime-ep-openvino", "device_type"),
    "qnn": _Known("QNNExecutionProvider", "onnxruntime-qnn"),
    "tensorrt_rtx": _Known("NvTensorRTRTXExecutionProvider", "onnxruntime-ep-nv-tensorrt-rtx"),
    "webgpu": _Known("WebGpuExecutionProvider", "onnxruntime-ep-webgpu"),
}
_NAMES = {known.provider: name for name, known in _KNOWN.items()}


class Provider(NamedTuple):
    """A provider with its hardware and options.

    Attributes:
        devices: the hardware of a provider from a library; empty for a provider that is built in.
        settings: the options of the provider.
    """

    name: str
    devices: tuple[Any, ...] = ()
    settings: Mapping[str, str] = {}

    @property
    def guard(self) -> AbstractContextManager[Any]:
        """Held while a thread copies to or from the provider's memory or runs a session. All sessions of a process may
        share one queue, and the runtime does not lock it for copies."""
        default = ort.OrtDeviceMemoryType.DEFAULT if self.devices else None
        on_host = provider_device(self.name) in ("cpu", "cuda") or (
            self.devices and self.devices[0].memory_info(default) is None
        )
        return nullcontext() if on_host else _lock(self.name)

    def session(self, source: Path | str | bytes, options: Any) -> Any:
        """Starts a session. No other session has these `options`."""
        with self.guard:
            if not self.devices:
                return ort.InferenceSession(source, options, providers=[(self.name, dict(self.settings))])
            options.add_provider_for_devices(list(self.devices), dict(self.settings))
            return ort.InferenceSession(source, options)

    def other_nodes(self, session: Any) -> tuple[list[str], int]:
        """The nodes that `session` runs on the processor, and the number of all nodes. The session records both where
        `session.record_ep_graph_assignment_info` is set.

        Raises:
            DeviceUnavailableError: this version of ONNX Runtime does not record them.
        """
        if not hasattr(session, "get_provider_graph_assignment_info"):
            raise DeviceUnavailableError(
                f"{self.name}: ONNX Runtime {ort.__version__} does not report the nodes on the processor; update it"
            )
        parts = [(part.ep_name == self.name, part.get_nodes()) for part in session.get_provider_graph_assignment_info()]
        other = [f"{node.op_type} {node.name!r}" for own, nodes in parts if not own for node in nodes]
        return other, sum(len(nodes) for _, nodes in parts)


@functools.cache
def _lock(provider: str) -> AbstractContextManager[Any]:
    return threading.RLock()


def provider_device(provider: str) -> str:
    """The name of a provider's devices: `"cuda"` of `"CUDAExecutionProvider"`."""
    return _NAMES.get(provider, provider.partition("ExecutionProvider")[0].lower())


#: Devices with providers that are built in. Azure is a server. The list of the runtime grows with each library.
_BUILT_IN = {provider_device(name): name for name in ort.get_available_providers() if not name.startswith("Azure")}


def available_devices() -> list[str]:
    """The devices of the installed providers: `["cpu", "webgpu", "openvino:cpu", "openvino:gpu"]`."""
    for package in _packages():
        _register(package)
    result = sorted(_BUILT_IN, key=lambda name: name != "cpu")
    for name, found in _hardware().items():
        kinds = [kind for kind, _ in found]
        devices = [str(Device(f"{name}:{kind}", kinds[:index].count(kind))) for index, kind in enumerate(kinds)]
        result += devices if len(devices) > 1 else [name]
    return result


def find_provider(device: Device, library: str | None = None) -> Provider:
    """The provider of a device.

    Args:
        library: the file of the provider, where no package has it.

    Raises:
        DeviceUnavailableError: there is no such provider, or it does not find the hardware.
    """
    name, _, hardware = device.kind.partition(":")
    known = _KNOWN.get(name)
    reasons = []
    if library is not None:
        reasons = [_load_library(f"{name}ExecutionProvider", library)]
    elif name not in _BUILT_IN:
        reasons = [_register(package) for package in ([known.package] if known is not None else _packages())]
    found = _hardware().get(name, [])
    matching = [one for kind, one in found if hardware in ("", kind)]
    if device.index < len(matching):
        return Provider(matching[device.index].ep_name, (matching[device.index],))
    selects = known.hardware if known is not None else ""
    if name in _BUILT_IN and (selects or not hardware) and (name != "cpu" or not device.index):
        settings = {selects: hardware.upper()} if hardware else {}
        return Provider(_BUILT_IN[name], (), settings | ({"device_id": str(device.index)} if device.index else {}))
    reason = "".join(f": {text}" for text in reasons if text)
    hint = f'; for {name}: pip install "{known.package}"' if known is not None and name not in _BUILT_IN else ""
    raise DeviceUnavailableError(
        f"device {str(device)!r} is not supported{reason}; the installed ONNX Runtime {ort.__version__} runs on: "
        f"{', '.join(available_devices())}{hint}"
    )


def _hardware() -> dict[str, list[tuple[str, Any]]]:
    """The hardware that the providers from libraries find, by the names of the devices: `"gpu"`, or `"auto"` of
    `OpenVINOExecutionProvider.AUTO`, with the runtime's object."""
    result: dict[str, list[tuple[str, Any]]] = {}
    for one in getattr(ort, "get_ep_devices", list)():
        if (name := provider_device(one.ep_name)) not in ("cpu", "cuda"):  # these are always built in
            kind = one.ep_name.partition(".")[2] or one.device.type.name
            result.setdefault(name, []).append((kind.lower(), one))
    return result


@functools.cache
def _packages() -> Sequence[str]:
    """The packages that may have a provider's library: those of the table, and those named like them."""
    from importlib.metadata import distributions  # it imports email and socket: 15 ms of the time to load a model

    named = (str(one.metadata["Name"]).lower().replace("_", "-") for one in distributions())
    return sorted({known.package for known in _KNOWN.values()} | {n for n in named if n.startswith("onnxruntime-ep-")})


@functools.cache
def _register(package: str) -> str:
    """Registers the library of a package, if it is installed and has one. Returns the reason where that failed."""
    module = package.replace("-", "_")
    if not module.isidentifier() or find_spec(module) is None:
        return ""
    try:
        plugin = importlib.import_module(module)
        path = plugin.get_library_path() if hasattr(plugin, "get_library_path") else None
    except Exception as error:  # a vendor's package may fail in any way
        return f"{package} fails to import: {text_of(error)}"
    return _load_library(plugin.get_ep_name(), path) if path else ""


@functools.cache
def _load_library(name: str, path: str) -> str:
    """Registers a library. Returns the reason where that failed, or where it has no hardware here."""
    if not hasattr(ort, "register_execution_provider_library"):
        return f"providers from libraries need ONNX Runtime 1.23 or later, and {ort.__version__} is installed"
    before = len(ort.get_ep_devices())
    try:
        ort.register_execution_provider_library(name, path)
    except FAILURES as error:
        return f"{path!r} cannot be loaded: {' '.join(text_of(error).split())}"
    return "" if len(ort.get_ep_devices()) > before else f"the provider in {path!r} finds no hardware that it supports"
