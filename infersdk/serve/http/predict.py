"""`POST /predict`: an image in, plain JSON out, for curl and browsers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from ...models.results.plain import plain_rows
from ..errors import RequestError, Status
from ..images import ImageEndpoint
from ..service import request_timing
from ..workers import in_worker, within
from .messages import Request, Response, Route

if TYPE_CHECKING:
    from ..service import InferenceService

__all__ = ["predict_routes"]

#: Longer forms are parsed in a worker thread.
_LONG_FORM = 1 << 20

# The parser of forms warns of damaged ones, which clients send. Without a handler the warnings go to stderr.
logging.getLogger("python_multipart").addHandler(logging.NullHandler())


def predict_routes(service: InferenceService) -> list[Route]:
    """The route that runs a model on one image: the body, or the only file of a form.

    The query names the model if the server has several (`?model=detector`), and sets parameters (`&conf=0.4`).
    """

    async def predict(request: Request) -> Response:
        texts = _query(request.query)
        name, version = texts.pop("model", ""), texts.pop("version", "")
        parameters = {key: _value(text) for key, text in texts.items()}
        endpoint = service.repository.find(name or _only_model(service), version)
        if not isinstance(endpoint, ImageEndpoint):
            raise RequestError(
                f"model {endpoint.name!r} takes tensors; send them to /v2/models/{endpoint.name}/infer, not to /predict"
            )
        request.notes = {"model": endpoint.name}
        deadline, priority = request_timing(parameters, service.settings.default_deadline)
        content_type = request.headers.get(b"content-type", b"")
        image = await in_worker(form_file, request.body, content_type, when=len(request.body) > _LONG_FORM)
        with endpoint.request():
            result = await endpoint.predict(image, parameters, deadline, priority)
            text = await within(deadline, in_worker(_write, endpoint, result))
        return Response(200, [text])

    return [("POST", r"/predict", predict)]


def _only_model(service: InferenceService) -> str:
    models, names = service.repository.models, service.repository.image_models()
    if len(models) == 1:
        return next(iter(models))  # `find()` reports why it is not ready
    waiting = [name for name, entry in models.items() if not entry.versions and not entry.is_unloaded]
    if len(names) > 1 or waiting:
        raise RequestError(
            f"name the model, ?model=NAME: {', '.join([*names, *waiting])[:500]}"
            + (f"; not ready: {', '.join(waiting)[:500]}" if waiting else ""),
            Status.INVALID if len(names) > 1 else Status.UNAVAILABLE,
        )
    if names:
        return names[0]
    raise RequestError(
        f"the models of this server take tensors, not images: {', '.join(models)[:500]}; send them to "
        f"/v2/models/{next(iter(models))}/infer"
    )


def _write(endpoint: ImageEndpoint, result: Any) -> bytes:
    """The JSON of a result."""
    endpoint.check_result(result)
    size = getattr(result, "size", None)
    return msgspec.json.encode(
        {
            "model": endpoint.name,
            "version": endpoint.version,
            "task": endpoint.model.task,
            "size": None if size is None else list(size),
            "results": plain_rows(result),
        }
    )


def _query(query: bytes) -> dict[str, str]:
    try:
        fields = parse_qsl(query.decode(), keep_blank_values=True, strict_parsing=bool(query), max_num_fields=50)
    except ValueError as error:
        raise RequestError(f"the query is not name=value&...: {error}") from None
    texts = dict(fields)
    if len(texts) < len(fields):
        raise RequestError("the query has a name twice; send a list of values to /v2/models/NAME/infer")
    return texts


def _value(text: str) -> Any:
    """Parses numbers, true and false; any other value is text."""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, (bool, int, float)) else text


def form_file(body: bytes, content_type: bytes) -> bytes:
    """The only file of a form, or any other body itself."""
    from python_multipart import FormParser
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import parse_options_header

    kind, options = parse_options_header(content_type)
    if kind.lower() != b"multipart/form-data":
        if not body:
            raise RequestError("there is no image: send it as the body, or as the file of a form")
        return body
    if not (boundary := options.get(b"boundary")):
        raise RequestError("the form has no boundary in its Content-Type")
    fields: list[Any] = []
    files: list[Any] = []
    # The size keeps each file in memory; larger ones would go to the disk.
    config: Any = {"MAX_MEMORY_FILE_SIZE": len(body)}
    try:
        parser = FormParser("multipart/form-data", fields.append, files.append, boundary=boundary, config=config)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise RequestError(f"the form is damaged: {error}") from None
    if fields or len(files) != 1:
        names = [one.field_name.decode("utf-8", "replace") for one in fields]
        raise RequestError(
            f"a form has one complete file and no fields, and this one has {len(files)} and the fields {names!s:.200}; "
            "set parameters in the query: /predict?conf=0.5"
        )
    image: bytes = files[0].file_object.getvalue()
    return image
