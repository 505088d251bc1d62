"""Starting a session, and reading back its optimised graph."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from ...core.files import scratch_folder
from ...errors import DeviceUnavailableError, ModelFormatError, UnsupportedModelError, text_of
from ...graph.files import load_proto, private_copy, require_onnx
from .providers import Provider, provider_device

if TYPE_CHECKING:
    from ...core.model_source import ModelSource

__all__ = [
    "GraphWriter", "load_libraries", "message_of", "metadata_of", "start_session", "written_to_disk",
    "written_to_memory",
]  # fmt: skip

#: Starts a session of a model (its path or bytes) with options and a provider; returns it and the graph that it writes.
GraphWriter = Callable[[Path | str | bytes, Any, Provider], tuple[Any, bytes]]


def start_session(
    source: Path | str | bytes,
    name: str,
    options: Callable[[], Any],
    provider: Provider,
    *,
    write: GraphWriter | None = None,
) -> tuple[Any, bytes | None]:
    """A session, and the graph that it executes, as an ONNX file.

    The graph is None without `write`, and if the runtime cannot write it.

    Args:
        source: the path of the model as text, the path of a file without external weights, or bytes.
        name: the model, for messages.
        options: returns new options for a session.
        provider: the execution provider.
        write: starts a session that writes its graph: `written_to_disk` or `written_to_memory`.

    Raises:
        ModelFormatError, UnsupportedModelError: the model is damaged, or the runtime cannot load it.
        DeviceUnavailableError: the provider cannot start.
    """
    if isinstance(source, str):
        with private_copy(source) as path:
            return _start(path, name, options, provider, write)
    return _start(source, name, options, provider, write)


def _start(
    source: Path | str | bytes, name: str, options: Callable[[], Any], provider: Provider, write: GraphWriter | None
) -> tuple[Any, bytes | None]:
    given = options()  # raises for custom operators that cannot be registered
    if write is not None:
        with contextlib.suppress(Exception):  # an error of the model is raised by the second try
            return write(source, given, provider)
        given = options()
    try:
        return provider.session(source, given), None
    except (ort_errors.InvalidProtobuf, ort_errors.NoModel) as error:
        raise ModelFormatError(f"{name!r} is not an ONNX model, or is corrupt: {message_of(error)}") from None
    except UnicodeDecodeError as error:  # of the runtime's message, which quotes the model
        raise ModelFormatError(f"{name!r} has names that are not UTF-8; is it damaged? ({text_of(error)})") from None
    except ort_errors.InvalidGraph as error:
        raise ModelFormatError(f"the graph of {name!r} is not valid: {message_of(error)}") from None
    except Exception as error:  # the runtime's exceptions have no common base
        if re.search("No graph was found|Invalid model", str(error)):  # and no class of their own for these
            raise ModelFormatError(f"{name!r} is not a valid ONNX model: {message_of(error)}") from None
        if "CreateProvider" in str(error):
            device = provider_device(provider.name)
            raise DeviceUnavailableError(f"device {device!r}: {provider.name}: {message_of(error)}") from None
        raise UnsupportedModelError(f"ONNX Runtime cannot load {name!r}: {message_of(error)}") from None


def written_to_disk(source: Path | str | bytes, options: Any, provider: Provider) -> tuple[Any, bytes]:
    """A session and its graph without the weights, through files."""
    with scratch_folder() as folder:
        file = folder / "executed.onnx"
        options.optimized_model_filepath = str(file)
        for key, value in (("file_name", "weights"), ("min_size_in_bytes", "1024")):
            options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
        session = provider.session(source, options)
        return session, file.read_bytes()


def written_to_memory(source: Path | str | bytes, options: Any, provider: Provider) -> tuple[Any, bytes]:
    """A session and its graph with the weights, through a file in memory."""
    descriptor = os.memfd_create("infersdk-executed", os.MFD_CLOEXEC)
    with open(descriptor, "rb") as file:
        options.optimized_model_filepath = f"/proc/self/fd/{descriptor}"
        session = provider.session(source, options)
        return session, file.read()


@functools.cache
def load_libraries() -> None:
    """Loads the libraries of CUDA and cuDNN from installed packages, which the system's loader does not search."""
    if hasattr(ort, "preload_dlls"):  # since 1.21
        # It prints missing libraries, and a library does not print. A session reports them, too.
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()


def message_of(error: Exception) -> str:
    """The runtime's message in one line, without its code, the file's name, and its source lines."""
    text = " ".join(text_of(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"^Load model from .*? failed: ?", "", text)
    text = re.sub(r"/\S+\.(?:cc|h):\d+ [^()]*\([^()]*\)(?: const)? ", "", text)
    return re.sub(r"\[ONNXRuntimeError\](?: : \d+ : \w+ :)? ?", "", text)


def metadata_of(session: Any, model: ModelSource) -> dict[str, str]:
    """The metadata of a model. Bytes that are not UTF-8 are replaced."""
    try:
        return dict(session.get_modelmeta().custom_metadata_map)
    except UnicodeDecodeError:
        require_onnx("reading metadata that is not UTF-8")
        return {entry.key: entry.value for entry in load_proto(model).metadata_props}
