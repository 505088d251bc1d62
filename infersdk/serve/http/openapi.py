"""The OpenAPI 3.1 description of the HTTP endpoints and the loaded models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

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
    from ... import __version__

    schemas = msgspec.json.schema_components([InferBody], ref_template="#/components/schemas/{name}")[1]
    schemas["Error"] = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    names = list(service.repository.models)
    images = [one for one in service.repository.endpoints() if isinstance(one, ImageEndpoint)]
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "infersdk serve", "version": __version__},
        "paths": {
            "/v2/health/live": _get("whether the server runs"),
            "/v2/health/ready": _get("whether all models are loaded and warm"),
            "/v2": _get("the server's name, version and extensions"),
            "/v2/models/{model}": _get("the model's inputs and outputs", _model(names)),
            "/v2/models/{model}/ready": _get("whether the model answers requests", _model(names)),
            "/v2/models/{model}/config": _get("the model's configuration", _model(names)),
            "/v2/models/{model}/stats": _get("the statistics of the model", _model(names)),
            "/v2/models/{model}/infer": _post(
                "run the model on tensors",
                {"application/json": {"schema": {"$ref": "#/components/schemas/InferBody"}}},
                _model(names), {"application/json": {"schema": {"type": "object"}}, **_BINARY},
            ),
            "/v2/repository/index": _post("all models with their states", {"application/json": {}}, []),
            "/metrics": _get("metrics for Prometheus"),
        },
        "components": {"schemas": schemas},
    }  # fmt: skip
    if images:
        document["paths"]["/predict"] = _post(
            "run a model on an image", {"image/*": _BINARY["application/octet-stream"], **_BINARY, **_FORM},
            [
                _query("model", {"type": "string", "enum": sorted({one.name for one in images})}),
                _query("deadline", {"type": "number", "exclusiveMinimum": 0}),
                *(_query(name, {}) for name in sorted(set().union(*(one.parameters for one in images)))),
            ],
        )  # fmt: skip
    if service.settings.api_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}
        document["security"] = [{"key": []}]
    return document


def _model(names: list[str]) -> list[dict[str, Any]]:
    return [{"name": "model", "in": "path", "required": True, "schema": {"type": "string", "enum": names}}]


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema}


def _get(summary: str, parameters: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "get": {
            "summary": summary,
            "parameters": parameters or [],
            "responses": {"200": {"description": "OK"}, **_ERRORS},
        }
    }


def _post(
    summary: str, content: dict[str, Any], parameters: list[dict[str, Any]], answer: dict[str, Any] | None = None
) -> dict[str, Any]:
    ok = {"description": "OK", "content": answer or {"application/json": {"schema": {"type": "object"}}}}
    return {
        "post": {
            "summary": summary, "parameters": parameters, "requestBody": {"content": content},
            "responses": {"200": ok, **_ERRORS},
        }
    }  # fmt: skip
