"""The page at `/`, the metrics at `/metrics`, and the OpenAPI document at `/openapi.json`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...pages import render
from ..images import ImageEndpoint
from ..metrics import metrics_text
from .app import Route, route
from .messages import Request, Response, json_response
from .openapi import openapi

if TYPE_CHECKING:
    from ..service import InferenceService

__all__ = ["PageHandlers"]

_FOLDER = Path(__file__).resolve().parent
#: The page loads nothing from other hosts, and may not be framed.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' blob: data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


class PageHandlers:
    """The endpoints for people and monitoring."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        own = [route("GET", r"/metrics", self.metrics), route("GET", r"/openapi\.json", self.description)]
        return [*own, route("GET", r"/", self.page)] if self._service.settings.page else own

    async def page(self, request: Request) -> Response:
        from markupsafe import Markup

        models = [
            name
            for name, entry in self._service.repository.models.items()
            if any(isinstance(endpoint, ImageEndpoint) for endpoint in entry.versions.values())
        ]
        script = Markup((_FOLDER / "page.js").read_text("utf-8"))
        text = render(
            _FOLDER / "page.html.j2", {"models": models}, title="infersdk serve", models=models, page_script=script
        )
        headers = [
            ("content-security-policy", _POLICY),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
        ]  # fmt: skip
        return Response(200, [text.encode()], "text/html; charset=utf-8", headers)

    async def metrics(self, request: Request) -> Response:
        return Response(200, [metrics_text(self._service)], "text/plain; version=0.0.4; charset=utf-8")

    async def description(self, request: Request) -> Response:
        return json_response(openapi(self._service))
