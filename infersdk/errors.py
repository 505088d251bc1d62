"""Everything that infersdk raises on purpose, in one tree.

::

    InferSDKError
    ├── ConfigError (ValueError)            a configuration that says something wrong, or nothing where it must
    ├── BackendError
    │   ├── BackendNotFoundError            no backend of that name
    │   ├── BackendUnavailableError         known, but its package is missing or fails to import
    │   ├── DeviceUnavailableError          the device asked for is not there, or the backend cannot use it
    │   ├── PrecisionUnavailableError       the precision asked for cannot be had
    │   └── MemoryLimitError (MemoryError)  the memory_limit of a model cannot be kept
    ├── ModelError
    │   ├── ModelNotFoundError (FileNotFoundError)
    │   ├── ModelFormatError                corrupt, or not a model at all
    │   ├── EngineError                     a built engine that is damaged, or made for another GPU or version
    │   └── UnsupportedModelError           well-formed, but more than the backend or the wrapper can do
    ├── InputError (ValueError)             what was given to a model or an operation
    │   ├── InputNameError (KeyError)
    │   ├── ShapeError
    │   ├── DTypeError (TypeError)
    │   └── CalibrationError                data or a table that a model cannot be quantised with
    ├── CustomOpError (ValueError)          an operator of one's own that is declared or used wrongly
    ├── ImageError (ValueError)             an image that is missing, truncated, or no image
    ├── VideoError (ValueError)             a video that is missing, damaged, or no video
    ├── TensorFileError (ValueError)        a tensor file that is malformed
    ├── InferenceError                      the runtime failed while it ran a model
    │   └── CustomKernelError               the kernel of an operator of one's own failed
    ├── PipelineError                       a request that a pipeline did not run
    │   ├── Overloaded                      all its slots are taken
    │   ├── DeadlineExceeded (TimeoutError)  its batch had not left by then
    │   └── ForkError                       the pipeline was made in another process
    ├── NativeError                         the core failed in a way that has no better name here
    │   ├── OutOfMemoryError (MemoryError)
    │   ├── ReadOnlyError
    │   └── CudaError
    ├── ClosedError                         used after close()
    ├── InUseError (RuntimeError)           two threads use an Infer or a Tensor at the same time
    └── OutputError (OSError)               a result that could not be written

Each message says what was wrong, with the values, and what to do next.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class InferSDKError(Exception):
    """The root: `except InferSDKError` catches all that this package raises on purpose."""


class ConfigError(InferSDKError, ValueError):
    """A configuration that says something wrong, or nothing where it must say something."""


class BackendError(InferSDKError):
    """A backend cannot do what was asked for."""


class BackendNotFoundError(BackendError):
    """No backend of that name is built in or registered."""


class BackendUnavailableError(BackendError):
    """The backend is known, but its package is missing or fails to import."""


class DeviceUnavailableError(BackendError):
    """The device asked for is not there, or the backend cannot use it."""


class PrecisionUnavailableError(BackendError):
    """The precision asked for cannot be had from this backend, device and model."""


class MemoryLimitError(BackendError, MemoryError):
    """The `memory_limit` of a model cannot be kept. Nothing was allocated; the message gives the sizes."""


class ModelError(InferSDKError):
    """Something is wrong with a model."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """There is no such model file."""


class ModelFormatError(ModelError):
    """The file is corrupt, or not a model of a kind that the backend reads."""


class EngineError(ModelError):
    """A built engine that is damaged, or was made for another GPU or another version of the runtime."""


class UnsupportedModelError(ModelError):
    """A well-formed model that the backend or the wrapper cannot handle.

    Attributes:
        reason: of a wrapper: why, without the names of the model and the wrapper; else None.
    """

    reason: str | None = None


class InputError(InferSDKError, ValueError):
    """What was given to a model or an operation does not fit it."""


class InputNameError(InputError, KeyError):
    """The model has no input of that name, or one of its inputs was not given."""

    __str__ = Exception.__str__  # KeyError would show the repr


class ShapeError(InputError):
    """A shape that does not fit."""


class DTypeError(InputError, TypeError):
    """An element type that does not fit."""


class CalibrationError(InputError):
    """Data, or a calibration table, that a model cannot be quantised with."""


class CustomOpError(InferSDKError, ValueError):
    """An operator of one's own that is declared wrongly, or does not fit the model, the device or the backend."""


class ImageError(InferSDKError, ValueError):
    """An image that is missing, truncated, or no image."""


class VideoError(InferSDKError, ValueError):
    """A video that is missing, damaged, or no video."""


class TensorFileError(InferSDKError, ValueError):
    """A tensor file that is truncated, oversized, or malformed."""


class InferenceError(InferSDKError):
    """The runtime failed while it ran a model."""


class CustomKernelError(InferenceError):
    """The kernel of an operator of one's own failed. What a kernel in Python raised is the cause."""


class PipelineError(InferSDKError):
    """A request that a pipeline did not run."""


class Overloaded(PipelineError):  # noqa: N818 - it says what is the matter, as TimeoutError's kin do
    """All slots of a pipeline are taken, and the caller would not wait, or not longer.

    Attributes:
        retry_after: seconds after which the same request may succeed; None where that is not known.
    """

    retry_after: float | None = None


class DeadlineExceeded(PipelineError, TimeoutError):  # noqa: N818
    """The batch of a request had not left by its deadline."""


class ForkError(PipelineError):
    """A pipeline was used in a child process: its threads are the parent's."""


class NativeError(InferSDKError):
    """The native core failed in a way that has no better name here."""


class OutOfMemoryError(NativeError, MemoryError):
    """Host or device memory ran out; the message gives the sizes."""


class ReadOnlyError(NativeError):
    """Write access to memory that was lent read-only."""


class CudaError(NativeError):
    """A CUDA call failed."""


class ClosedError(InferSDKError):
    """Used after close()."""


class InUseError(InferSDKError, RuntimeError):
    """Two threads use an `Infer` or a `Tensor` at the same time. Nothing was changed by the second one."""


class OutputError(InferSDKError, OSError):
    """A result that could not be written."""


def text_of(error: BaseException) -> str:
    """The message of an error. That of a native library which is not UTF-8 comes as a UnicodeDecodeError around it."""
    if isinstance(error, UnicodeDecodeError):
        return error.object.decode("utf-8", "replace")
    return str(error)


def nearest(name: str, known: Iterable[str]) -> str:
    """The part of a message that suggests the known name which is most like an unknown one:
    `"; did you mean 'conf'?"`, or `""` where none is alike.
    """
    close = nearest_name(name, known)
    return f"; did you mean {close!r}?" if close is not None else ""


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like an unknown one; None where none is alike.

    A name that is the beginning of another one, `conf` of `confidence`, counts as alike; else difflib decides. Case is
    ignored.
    """
    from difflib import get_close_matches

    text, names = name.lower(), {one.lower(): one for one in known}
    parts = [one for one in names if min(len(one), len(text)) >= 3 and (text.startswith(one) or one.startswith(text))]
    close = sorted(parts, key=lambda one: abs(len(one) - len(text))) or get_close_matches(text, names, 1)
    return names[close[0]] if close else None


def relative_to(path: str | os.PathLike[str]) -> str:
    """What a message adds when nothing is at `path`: where it was looked for, unless the path says so."""
    if os.path.isabs(path):
        return ""
    try:
        return f"; the path is relative to {os.getcwd()}"
    except OSError:
        return "; the path is relative to the working directory, which has been deleted"
