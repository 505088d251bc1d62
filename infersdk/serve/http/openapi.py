"""The OpenAPI 3.1 description of the HTTP endpoints and the loaded models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ... import __version__
from ..images import ImageEndpoint
from .infer_codec import InferBody

if TYPE_CHECKING:
    from ..service import InferenceService

__all__ = ["openapi"]

_ERROR = {
    "description": "what was wrong",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_ERRORS = {str(code): _ERROR for code in (400, 401, 404, 413, 429, 500, 503, 504)}
#: The paths of GET with their summaries.
_READ = {
    "/v2/health/live": "whether the server runs",
    "/v2/health/ready": "whether all models are loaded and warm",
    "/v2": "the server's name, version and extensions",
    "/v2/models/{model}": "the model's inputs and outputs",
    "/v2/models/{model}/ready": "whether the model answers requests",
    "/v2/models/{model}/config": "the model's configuration",
    "/v2/models/{model}/stats": "the statistics of the model",
    "/metrics": "metrics for Prometheus",
}
_JSON = {"application/json": {"schema": {"type": "object"}}}
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_FORM = {
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {"file": {"type": "string", "format": "binary"}},
            "required": ["file"],
        }
    }
}


def openapi(service: InferenceService) -> dict[str, Any]:
    """The OpenAPI document."""
    schemas = msgspec.json.schema_components([InferBody], ref_template="#/components/schemas/{name}")[1]
    schemas["Error"] = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    names = list(service.repository.models)
    images = [one for one in service.repository.endpoints() if isinstance(one, ImageEndpoint)]
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "enum": names}}
    paths = {
        path: {"get": _operation(summary, [model] if "{model}" in path else [])} for path, summary in _READ.items()
    }
    paths["/v2/models/{model}/infer"] = {
        "post": _operation(
            "run the model on tensors", [model],
            {"application/json": {"schema": {"$ref": "#/components/schemas/InferBody"}}}, {**_JSON, **_BINARY},
        )
    }  # fmt: skip
    paths["/v2/repository/index"] = {
        "post": _operation("all models with their states", [], {"application/json": {}}, _JSON)
    }
    if images:
        parameters = [
            _query("model", {"type": "string", "enum": sorted({one.name for one in images})}),
            _query("deadline", {"type": "number", "exclusiveMinimum": 0}),
            *(_query(name, {}) for name in sorted(set().union(*(one.parameters for one in images)))),
        ]
        content = {"image/*": _BINARY["application/octet-stream"], **_BINARY, **_FORM}
        paths["/predict"] = {"post": _operation("run a model on an image", parameters, content, _JSON)}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "infersdk serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if service.settings.api_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}
        document["security"] = [{"key": []}]
    return document


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema}


def _operation(
    summary: str,
    parameters: Sequence[dict[str, Any]],
    body: dict[str, Any] | None = None,
    answer: dict[str, Any] | None = None,
) -> dict[str, Any]:
    ok = {"description": "OK"} if answer is None else {"description": "OK", "content": answer}
    operation = {"summary": summary, "parameters": [*parameters], "responses": {"200": ok, **_ERRORS}}
    return operation if body is None else {**operation, "requestBody": {"content": body}}
