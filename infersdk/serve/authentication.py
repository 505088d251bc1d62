"""API keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from .errors import RequestError, Status

__all__ = ["Authentication"]

#: Paths and calls without authentication: health checks of load balancers, and the page, which asks for a key.
_OPEN_PATHS = {"/v2/health/live", "/v2/health/ready", "/"}
_OPEN_CALLS = {"ServerLive", "ServerReady", "Check"}


class Authentication:
    """Checks that a request has one of the configured keys. Without configured keys all requests pass.

    Attributes:
        needs_key: whether keys are configured.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]
        self.needs_key = bool(keys)

    def check_http(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Raises RequestError for a request without a valid key."""
        if self._digests and path not in _OPEN_PATHS:
            self._check(headers.get(b"x-api-key") or _bearer(headers.get(b"authorization", b"")))

    def check_grpc(self, call: str, metadata: Mapping[str, str | bytes]) -> None:
        """Raises RequestError for a call without a valid key."""
        if self._digests and call not in _OPEN_CALLS:
            self._check(_bytes(metadata.get("x-api-key")) or _bearer(_bytes(metadata.get("authorization"))))

    def _check(self, key: bytes) -> None:
        digest = hashlib.sha256(key).digest()
        if not any(hmac.compare_digest(digest, known) for known in self._digests):
            raise RequestError(
                "a valid API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY", Status.UNAUTHENTICATED
            )


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _bearer(value: bytes) -> bytes:
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""
