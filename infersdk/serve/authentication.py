"""API keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from .errors import RequestError, Status

__all__ = ["Authentication"]

#: Paths of HTTP and calls of gRPC without authentication: health checks of load balancers, and the page, which asks for
#: a key.
_OPEN = {"/v2/health/live", "/v2/health/ready", "/", "ServerLive", "ServerReady", "Check"}


class Authentication:
    """Checks that a request has one of the configured keys. Without configured keys all requests pass."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]
        self.needs_key = bool(keys)

    def check(self, name: str, headers: Mapping[bytes, bytes]) -> None:
        """Raises RequestError for a request without a valid key. `name` is its path, or the call of gRPC."""
        if not self.needs_key or name in _OPEN:
            return
        key = headers.get(b"x-api-key") or _bearer(headers.get(b"authorization", b""))
        digest = hashlib.sha256(key).digest()
        if not any(hmac.compare_digest(digest, known) for known in self._digests):
            raise RequestError(
                "a valid API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY",
                Status.UNAUTHENTICATED,
                [("www-authenticate", "Bearer")],
            )


def _bearer(value: bytes) -> bytes:
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""
