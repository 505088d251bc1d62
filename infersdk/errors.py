"""Everything that infersdk raises on purpose, in one tree.

Each message states the problem, the value and the remedy. Each class has a `code`, such as `IFS202`, which stays the
same between releases; the page Errors has a section for each.
"""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class InferSDKError(Exception):
    """The root: `except InferSDKError` catches all that this package raises on purpose.

    Attributes:
        code: identifies the error in the documentation, in logs and in messages of the command line.
    """

    code: ClassVar[str] = "IFS100"

    @property
    def url(self) -> str:
        """The section about this error, relative to the root of the documentation."""
        return f"errors/#{self.code.lower()}"


class ConfigError(InferSDKError, ValueError):
    """A configuration has a wrong or missing value."""

    code = "IFS101"


class BackendError(InferSDKError):
    """A backend cannot fulfil the request."""

    code = "IFS200"


class BackendNotFoundError(BackendError):
    """No backend of that name is built in or registered."""

    code = "IFS201"


class BackendUnavailableError(BackendError):
    """The backend is known, but its package is missing or fails to import."""

    code = "IFS202"


class DeviceUnavailableError(BackendError):
    """The device asked for is not there, or the backend cannot use it."""

    code = "IFS203"


class PrecisionUnavailableError(BackendError):
    """The precision asked for cannot be had from this backend, device and model."""

    code = "IFS204"


class MemoryLimitError(BackendError, MemoryError):
    """The `memory_limit` of a model cannot be kept. Nothing was allocated; the message gives the sizes."""

    code = "IFS205"


class ModelError(InferSDKError):
    """Something is wrong with a model."""

    code = "IFS300"


class ModelNotFoundError(ModelError, FileNotFoundError):
    """There is no such model file."""

    code = "IFS301"


class ModelFormatError(ModelError):
    """The file is corrupt, or not a model of a kind that the backend reads."""

    code = "IFS302"


class EngineError(ModelError):
    """A built engine that is damaged, or was made for another GPU or another version of the runtime."""

    code = "IFS303"


class UnsupportedModelError(ModelError):
    """A well-formed model that the backend or the wrapper cannot handle.

    Attributes:
        reason: of a wrapper: why, without the names of the model and the wrapper; else None.
    """

    code = "IFS304"

    reason: str | None = None


class BundleError(ModelError):
    """A bundle that is not used."""

    code = "IFS310"


class BundleFormatError(BundleError):
    """The file is not a bundle, was cut, or has a newer format."""

    code = "IFS311"


class BundleIntegrityError(BundleError):
    """A part of the bundle was changed: its SHA-256 is not that of the manifest."""

    code = "IFS312"


class BundleSignatureError(BundleError):
    """The bundle has no signature, was changed after it was signed, or is signed by another key."""

    code = "IFS313"


class BundleKeyError(BundleError):
    """A key is missing or malformed, or the bundle is encrypted with another key."""

    code = "IFS314"


class BundlePartError(BundleError):
    """An encrypted part belongs to another bundle."""

    code = "IFS315"


class GoldenSampleError(BundleError):
    """The model does not compute the values of the golden samples.

    Attributes:
        report: the stage, the output and the layer that differ; None where the samples cannot be compared.
    """

    code = "IFS316"

    report: Any = None


class InputError(InferSDKError, ValueError):
    """An input does not fit the model or the operation."""

    code = "IFS400"


class InputNameError(InputError, KeyError):
    """The model has no input of that name, or one of its inputs was not given."""

    code = "IFS401"

    __str__ = Exception.__str__  # KeyError would show the repr


class ShapeError(InputError):
    """A shape that does not fit."""

    code = "IFS402"


class DTypeError(InputError, TypeError):
    """An element type that does not fit."""

    code = "IFS403"


class CalibrationError(InputError):
    """Data, or a calibration table, that a model cannot be quantised with."""

    code = "IFS404"


class CustomOpError(InferSDKError, ValueError):
    """A custom operator is declared wrongly, or does not fit the model, the device or the backend."""

    code = "IFS405"


class ImageError(InferSDKError, ValueError):
    """An image that is missing, truncated, or no image."""

    code = "IFS501"


class VideoError(InferSDKError, ValueError):
    """A video that is missing, damaged, or no video."""

    code = "IFS502"


class TensorFileError(InferSDKError, ValueError):
    """A tensor file that is truncated, oversized, or malformed."""

    code = "IFS503"


class InferenceError(InferSDKError):
    """The runtime failed while it ran a model."""

    code = "IFS600"


class CustomKernelError(InferenceError):
    """The kernel of a custom operator failed. The cause is the exception of a Python kernel."""

    code = "IFS601"


class PipelineError(InferSDKError):
    """A request that a pipeline did not run."""

    code = "IFS610"


class Overloaded(PipelineError):  # noqa: N818 - named like TimeoutError
    """All slots of a pipeline are taken, and the caller would not wait, or not longer.

    Attributes:
        retry_after: seconds after which the same request may succeed; None where that is not known.
    """

    code = "IFS611"

    retry_after: float | None = None


class DeadlineExceeded(PipelineError, TimeoutError):  # noqa: N818
    """The batch of a request had not left by its deadline."""

    code = "IFS612"


class ForkError(PipelineError):
    """A pipeline was used in a child process: its threads are the parent's."""

    code = "IFS613"


class NativeError(InferSDKError):
    """The native core failed in a way that has no better name here."""

    code = "IFS700"


class OutOfMemoryError(NativeError, MemoryError):
    """Host or device memory ran out, or a runtime lacks threads or file descriptors. The message says of what, and how
    much if that is known.
    """

    code = "IFS701"


class ReadOnlyError(NativeError):
    """Write access to memory that was lent read-only."""

    code = "IFS702"


class CudaError(NativeError):
    """A CUDA call failed."""

    code = "IFS703"


class ClosedError(InferSDKError):
    """Used after close()."""

    code = "IFS801"


class InUseError(InferSDKError, RuntimeError):
    """Two threads use an object at the same time: an `Infer`, a `Tensor`, a tracker or a decoder. The second one
    changes nothing.
    """

    code = "IFS802"


class OutputError(InferSDKError, OSError):
    """A result that could not be written."""

    code = "IFS504"


_SCARCE = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
#: The messages of runtimes, which raise no exception of their own for this: of C++, CUDA, Python and the system.
_SCARCE_TEXT = (
    r"bad.?alloc|bad_array_new|alloc_failed|(failed to|unable to|can't|can ?not|could not) alloc|"
    r"out[ _]?of[ _]?(host_|device_)?memory|can't start new thread|" + "|".join(map(os.strerror, _SCARCE))
)


def exhausted(error: BaseException | str, name: str) -> OutOfMemoryError | None:
    """The error of a failure for lack of memory, threads or file descriptors; None for another failure.

    Args:
        error: of the runtime or the system.
        name: the model.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as full:  # runtimes drop this reason
        error = full if full.errno in _SCARCE else error
    reason = getattr(error, "strerror", None) or " ".join(text_of(error).split()) or "MemoryError"
    by_number = isinstance(error, OSError) and error.errno in _SCARCE
    by_text = not isinstance(error, OSError) and re.search(_SCARCE_TEXT, reason, re.IGNORECASE)
    if not (by_number or by_text or isinstance(error, MemoryError)):
        return None
    return OutOfMemoryError(
        f"{name}: the process lacks memory, threads or file descriptors: {reason}; release or close models that are "
        "not in use, or raise the limits of the process"
    )


def text_of(error: BaseException | str) -> str:
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
    """The working folder for messages about a missing relative `path`; empty for an absolute one."""
    if os.path.isabs(path):
        return ""
    try:
        return f"; the path is relative to {os.getcwd()}"
    except OSError:
        return "; the path is relative to the working directory, which has been deleted"
