"""The page at `/`, the metrics at `/metrics`, and the OpenAPI document at `/openapi.json`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...pages import render
from ..metrics import metrics_text
from .messages import Request, Response, Route
from .openapi import openapi

if TYPE_CHECKING:
    from ..service import InferenceService

__all__ = ["page_routes"]

_TEMPLATE = Path(__file__).resolve().with_name("page.html.j2")
#: The page loads nothing from other hosts, and may not be framed.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' blob: data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def page_routes(service: InferenceService) -> list[Route]:
    """The routes for people and monitoring."""

    def page(request: Request) -> Response:
        models = service.repository.image_models()
        text = render(_TEMPLATE, {"models": models}, title="infersdk serve", models=models)
        headers = [
            ("content-security-policy", _POLICY),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
        ]
        return Response(200, [text.encode()], "text/html; charset=utf-8", headers)

    def metrics(request: Request) -> Response:
        return Response(200, [metrics_text(service)], "text/plain; version=0.0.4; charset=utf-8")

    routes: list[Route] = [("GET", r"/metrics", metrics), ("GET", r"/openapi\.json", lambda request: openapi(service))]
    return [*routes, ("GET", r"/", page)] if service.settings.page else routes
