"""OpenTelemetry traces: a span for each request, with child spans for its stages in the model."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from .. import __version__
from ..core.text import logger
from ..errors import BackendUnavailableError
from ..pipeline import RequestStages, stage_listener
from .errors import RequestError, Status

__all__ = ["RequestTrace", "Tracing"]

_log = logger("infersdk.serve")

#: Seconds for the export of the remaining spans when the server ends.
CLOSE_SECONDS = 5.0
#: Failures caused by the server; all others are caused by the client.
_OF_THE_SERVER = {Status.INTERNAL, Status.UNIMPLEMENTED, Status.UNAVAILABLE, Status.DEADLINE}


class Tracing:
    """Creates the spans of a server.

    It uses the `TracerProvider` of the process, or creates one that exports by OTLP over HTTP, configured by
    OpenTelemetry's environment variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, ...).

    Raises:
        BackendUnavailableError: the packages of OpenTelemetry are missing.
    """

    def __init__(self) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError as error:
            raise _missing(error) from None
        self._trace, self._extract = trace, propagate.extract
        self._own: Any = None
        provider: Any = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):
            provider = self._own = _exporting_provider()
        self._tracer = provider.get_tracer("infersdk.serve", __version__)

    def start(self, name: str, carrier: Mapping[str, str], attributes: Mapping[str, Any]) -> RequestTrace:
        """Starts the span of a request, in the task that runs it. Of the headers in `carrier`, whose names are in lower
        case, `traceparent` names the parent.
        """
        parent, kind = self._extract(carrier), self._trace.SpanKind.SERVER
        span = self._tracer.start_span(name, parent, kind=kind, attributes=attributes)
        return RequestTrace(self._trace, self._tracer, span)

    def close(self) -> None:
        """Exports the remaining spans, for at most `CLOSE_SECONDS`."""
        if self._own is None:
            return
        closing = threading.Thread(target=self._own.shutdown, name="infersdk-traces", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        if closing.is_alive():
            _log.warning("the last traces were not exported within %g s, and may be lost", CLOSE_SECONDS)


class RequestTrace:
    """The span of one request. Call `end()` in the same task."""

    def __init__(self, api: Any, tracer: Any, span: Any) -> None:
        self._api, self._tracer, self._span = api, tracer, span
        self._stages: list[RequestStages] = []
        self._listening = stage_listener.set(self._stages.append)

    def end(self, error: RequestError | None, notes: dict[str, Any], attributes: Mapping[str, Any]) -> None:
        """Ends the span, after the spans of the stages.

        Args:
            notes: fields of the access log; `trace_id`, 32 hexadecimal digits, is added.
            attributes: further attributes of the span, besides the model.
        """
        notes["trace_id"] = self._api.format_trace_id(self._span.get_span_context().trace_id)
        stage_listener.reset(self._listening)
        if self._span.is_recording():
            self._add_stages()
        model = {"infersdk.model": notes["model"]} if "model" in notes else {}
        self._span.set_attributes({**attributes, **model})
        if error is not None:
            self._span.set_attribute("error.type", error.status.grpc)
            if error.status in _OF_THE_SERVER:
                self._span.set_status(self._api.Status(self._api.StatusCode.ERROR, error.message))
        self._span.end()

    def _add_stages(self) -> None:
        clock = time.time_ns() - time.monotonic_ns()
        parent = self._api.set_span_in_context(self._span)

        def add(name: str, begin: float, end: float, context: Any, **attributes: Any) -> Any:
            span = self._tracer.start_span(name, context, attributes=attributes, start_time=clock + round(begin * 1e9))
            span.end(end_time=clock + round(end * 1e9))
            return self._api.set_span_in_context(span)

        for stages in list(self._stages):
            queue = add("queue", stages.submitted, stages.left, parent)
            add("decode", *stages.prepare, queue)
            add("run", stages.left, stages.ran, parent, **{"infersdk.batch": stages.batch})
            add("postprocess", stages.ran, stages.done, parent)


def _exporting_provider() -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise _missing(error) from None
    resource = Resource.create()
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):  # the environment names none
        resource = resource.merge(Resource({"service.name": "infersdk"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # `close()` does it, within its time
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _missing(error: ImportError) -> BackendUnavailableError:
    return BackendUnavailableError(f'traces need more packages ({error}): pip install "infersdk[otel]"')
