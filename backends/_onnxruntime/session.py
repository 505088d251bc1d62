"""Starting a session, and reading back the graph that the runtime made of a model."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from ..._files import scratch_folder
from ...errors import ModelFormatError, UnsupportedModelError, text_of
from ...graph.files import load_proto, private_copy, require_onnx

if TYPE_CHECKING:
    from ...model_source import ModelSource

__all__ = ["load_libraries", "message_of", "metadata_of", "start_session"]


def start_session(
    source: str | bytes,
    name: str,
    options: Callable[[], Any],
    provider: str,
    settings: Mapping[str, str],
    *,
    keep_in_memory: bool,
) -> tuple[Any, bytes | None]:
    """A session, and the graph that it executes, as an ONNX file.

    The graph is None where the runtime could not write it: the disk is full, or it holds what a file cannot.

    Args:
        source: the path of the model, or its bytes.
        name: the model, for messages.
        options: makes the session's options; each session has its own.
        provider, settings: the execution provider.
        keep_in_memory: whether nothing of the model may be written to a disk.

    Raises:
        ModelFormatError, UnsupportedModelError: the model is damaged, or the runtime cannot load it.
    """
    if isinstance(source, str):
        with private_copy(source) as path:
            return _start(path, name, options, [(provider, dict(settings))], keep_in_memory=keep_in_memory)
    return _start(source, name, options, [(provider, dict(settings))], keep_in_memory=keep_in_memory)


def _start(
    source: str | bytes, name: str, options: Callable[[], Any], providers: Any, *, keep_in_memory: bool
) -> tuple[Any, bytes | None]:
    write = _written_to_memory if keep_in_memory else _written_to_disk
    writing = options()  # raises for custom operators that cannot be registered
    with contextlib.suppress(Exception):  # either the model is at fault or the writing: the second try shows which
        return write(source, writing, providers)
    try:
        return ort.InferenceSession(source, options(), providers=providers), None
    except (ort_errors.InvalidProtobuf, ort_errors.NoModel) as error:
        raise ModelFormatError(f"{name!r} is not an ONNX model, or is corrupt: {message_of(error)}") from None
    except UnicodeDecodeError as error:  # of the runtime's own message, which quotes the model
        raise ModelFormatError(f"{name!r} has names that are not UTF-8; is it damaged? ({text_of(error)})") from None
    except ort_errors.InvalidGraph as error:
        raise ModelFormatError(f"the graph of {name!r} is not valid: {message_of(error)}") from None
    except Exception as error:  # the runtime's exceptions have no common base
        if re.search("No graph was found|Invalid model", str(error)):  # and no class of their own for these
            raise ModelFormatError(f"{name!r} is not a valid ONNX model: {message_of(error)}") from None
        raise UnsupportedModelError(f"ONNX Runtime cannot load {name!r}: {message_of(error)}") from None


def _written_to_disk(source: str | bytes, options: Any, providers: Any) -> tuple[Any, bytes]:
    """A session and its graph, through a file; the weights go to another file, which is not read."""
    with scratch_folder() as folder:
        file = folder / "executed.onnx"
        options.optimized_model_filepath = str(file)
        for key, value in (("file_name", "weights"), ("min_size_in_bytes", "1024")):
            options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
        session = ort.InferenceSession(source, options, providers=providers)
        return session, file.read_bytes()


def _written_to_memory(source: str | bytes, options: Any, providers: Any) -> tuple[Any, bytes]:
    """The same through a file in memory, weights included."""
    descriptor = os.memfd_create("infersdk-executed", os.MFD_CLOEXEC)
    with open(descriptor, "rb") as file:
        options.optimized_model_filepath = f"/proc/self/fd/{descriptor}"
        session = ort.InferenceSession(source, options, providers=providers)
        return session, file.read()


@functools.cache
def load_libraries() -> None:
    """Loads those of CUDA and cuDNN that were installed as packages, where the system's loader does not look."""
    if hasattr(ort, "preload_dlls"):  # since 1.21
        # It prints what it does not find, and a library does not print. What is missing shows when a session starts.
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()


def message_of(error: Exception) -> str:
    """The runtime's message in one line, without its code, the file's name, and the lines of its own source."""
    text = " ".join(text_of(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"^Load model from .*? failed: ?", "", text)
    return re.sub(r"/\S+\.(?:cc|h):\d+ [^()]*\([^()]*\)(?: const)? ", "", text)


def metadata_of(session: Any, model: ModelSource) -> dict[str, str]:
    """The metadata of a model. Bytes that are not UTF-8 are replaced; the runtime's interface raises for them."""
    try:
        return dict(session.get_modelmeta().custom_metadata_map)
    except UnicodeDecodeError:
        require_onnx("reading metadata that is not UTF-8")
        return {entry.key: entry.value for entry in load_proto(model).metadata_props}
