"""Starting a session, and reading back the graph that the runtime made of a model."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from ...errors import ModelFormatError, UnsupportedModelError

__all__ = ["load_libraries", "message_of", "start_session"]


def start_session(
    source: str | bytes, name: str, options: Callable[[], Any], provider: str, settings: Mapping[str, str]
) -> tuple[Any, bytes | None]:
    """A session, and the graph that it executes, as an ONNX file without its weights.

    The graph is None where the runtime could not write it: the disk is full, or it holds what a file cannot.

    Args:
        source: the path of the model, or its bytes.
        name: the model, for messages.
        options: makes the session's options; each session has its own.
        provider, settings: the execution provider.

    Raises:
        ModelFormatError, UnsupportedModelError: the model is damaged, or the runtime cannot load it.
    """
    providers = [(provider, dict(settings))]
    writing = options()
    try:
        with tempfile.TemporaryDirectory(prefix="infersdk-") as folder:
            file = Path(folder, "executed.onnx")
            writing.optimized_model_filepath = str(file)
            for key, value in (("file_name", "weights"), ("min_size_in_bytes", "1024")):
                writing.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
            session = ort.InferenceSession(source, writing, providers=providers)
            return session, file.read_bytes()
    except Exception:  # either the model is at fault or the writing: the second try shows which
        pass
    try:
        return ort.InferenceSession(source, options(), providers=providers), None
    except (ort_errors.InvalidProtobuf, ort_errors.NoModel) as error:
        raise ModelFormatError(f"{name!r} is not an ONNX model, or is corrupt: {message_of(error)}") from None
    except ort_errors.InvalidGraph as error:
        raise ModelFormatError(f"the graph of {name!r} is not valid: {message_of(error)}") from None
    except Exception as error:  # the runtime's exceptions have no common base
        if re.search("No graph was found|Invalid model", str(error)):  # and no class of their own for these
            raise ModelFormatError(f"{name!r} is not a valid ONNX model: {message_of(error)}") from None
        raise UnsupportedModelError(f"ONNX Runtime cannot load {name!r}: {message_of(error)}") from None


@functools.cache
def load_libraries() -> None:
    """Loads those of CUDA and cuDNN that were installed as packages, where the system's loader does not look."""
    if hasattr(ort, "preload_dlls"):  # since 1.21
        # It prints what it does not find, and a library does not print. What is missing shows when a session starts.
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()


def message_of(error: Exception) -> str:
    """The runtime's message in one line, without its code, the file's name, and the lines of its own source."""
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"^Load model from .*? failed: ?", "", text)
    return re.sub(r"/\S+\.(?:cc|h):\d+ [^()]*\([^()]*\)(?: const)? ", "", text)
