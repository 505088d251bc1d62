"""Failed requests: the status with its HTTP and gRPC codes, and the message for the client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import CancelledError
from enum import Enum

from .. import errors
from ..core.text import logger

__all__ = ["RequestError", "Status", "as_request_error", "retry_after", "shortened"]

_log = logger("infersdk.serve")


#: Maximum characters of a message. Names and values from clients may have any length.
_LONGEST_MESSAGE = 4000


class Status(Enum):
    """The outcome of a request that failed: its HTTP code `http`, and the name of its gRPC code `grpc`."""

    INVALID = 400, "INVALID_ARGUMENT"
    UNAUTHENTICATED = 401, "UNAUTHENTICATED"
    FORBIDDEN = 403, "PERMISSION_DENIED"
    NOT_FOUND = 404, "NOT_FOUND"
    METHOD = 405, "UNIMPLEMENTED"
    TIMEOUT = 408, "DEADLINE_EXCEEDED"
    EXISTS = 409, "ALREADY_EXISTS"
    TOO_LARGE = 413, "RESOURCE_EXHAUSTED"
    MEDIA_TYPE = 415, "INVALID_ARGUMENT"
    OVERLOADED = 429, "RESOURCE_EXHAUSTED"
    HEADERS = 431, "RESOURCE_EXHAUSTED"
    CANCELLED = 499, "CANCELLED"
    INTERNAL = 500, "INTERNAL"
    UNIMPLEMENTED = 501, "UNIMPLEMENTED"
    UNAVAILABLE = 503, "UNAVAILABLE"
    DEADLINE = 504, "DEADLINE_EXCEEDED"

    def __init__(self, http: int, grpc: str) -> None:
        self.http, self.grpc = http, grpc


class RequestError(Exception):
    """A request was refused or failed.

    Args:
        message: the cause with its values, and the remedy. The client receives it, shortened to 4,000 characters.
        headers: of the answer, or the trailing metadata of gRPC; names in lower case.
    """

    def __init__(self, message: str, status: Status = Status.INVALID, headers: Sequence[tuple[str, str]] = ()) -> None:
        self.status, self.message, self.headers = status, shortened(message, _LONGEST_MESSAGE), headers
        super().__init__(self.message)


#: The first matching type determines the status.
_STATUS: tuple[tuple[type[Exception], Status], ...] = (
    (errors.Overloaded, Status.OVERLOADED),
    (errors.DeadlineExceeded, Status.DEADLINE),
    (errors.ClosedError, Status.UNAVAILABLE),
    (errors.InputError, Status.INVALID),
    (errors.ImageError, Status.INVALID),
    (errors.ConfigError, Status.INVALID),  # a parameter of the request with a wrong value
    (errors.UnsupportedModelError, Status.INVALID),
    (CancelledError, Status.CANCELLED),
)


def retry_after(seconds: float) -> Sequence[tuple[str, str]]:
    """The headers of a refused request that may succeed later."""
    return [("retry-after", str(max(1, math.ceil(seconds))))]


def shortened(text: str, limit: int) -> str:
    """The text, or a longer one without its middle: about `limit` characters."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail]} [{len(text) - limit:,} characters left out] {text[-tail:]}"


def as_request_error(error: Exception) -> RequestError:
    """The error for the client: a typed error keeps its message, others are logged with their traceback."""
    if isinstance(error, RequestError):
        return error
    for kind, status in _STATUS:
        if isinstance(error, kind):
            message = errors.text_of(error) or "the request was cancelled"
            later = retry_after(error.retry_after or 1) if isinstance(error, errors.Overloaded) else ()
            return RequestError(message, status, later)
    _log.error("a request failed", exc_info=error)
    if isinstance(error, errors.InferSDKError):
        return RequestError(errors.text_of(error), Status.INTERNAL)
    return RequestError("the server failed on this request; its log has the reason", Status.INTERNAL)
