"""Traces of requests: their spans, and their parents in the headers."""

from __future__ import annotations

import io
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest
from PIL import Image
from served_requests import ask, client_of, inputs_of, serving, simple_body
from waiting import until

from infersdk.data import DETECTOR
from infersdk.serve import tracing

sdk: Any = pytest.importorskip("opentelemetry.sdk.trace", reason="traces need the extra otel")
export: Any = pytest.importorskip("opentelemetry.sdk.trace.export")
memory: Any = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
api: Any = pytest.importorskip("opentelemetry.trace")

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


@pytest.fixture(scope="module")
def exporter() -> Iterator[Any]:
    """The spans of this process, in memory."""
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    api.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


@pytest.fixture(scope="module")
def traced(tables: dict[str, Any], exporter: Any) -> Iterator[Any]:
    """A server with traces."""
    with serving({name: tables[name] for name in ("simple", "simple_string")}, traces=True) as running:
        yield running


@pytest.fixture
def spans(exporter: Any) -> Any:
    """The spans of the test, by name."""
    exporter.clear()

    def found() -> dict[str, Any]:
        ended = exporter.get_finished_spans()
        by_name = {span.name: span for span in ended}
        assert len(by_name) == len(ended)
        return by_name

    return found


def check(found: dict[str, Any], name: str, batch: int) -> Any:
    """The spans of the stages lie in that of the request, and in their order; returns that one."""
    assert set(found) == {name, "queue", "decode", "run", "postprocess"}
    root = found[name]
    assert root.kind is api.SpanKind.SERVER
    assert {span.context.trace_id for span in found.values()} == {root.context.trace_id}
    for stage in ("queue", "run", "postprocess"):
        assert found[stage].parent.span_id == root.context.span_id
    assert found["decode"].parent.span_id == found["queue"].context.span_id
    order = [
        root.start_time, found["queue"].start_time, found["decode"].start_time, found["decode"].end_time,
        found["queue"].end_time, found["run"].start_time, found["run"].end_time, found["postprocess"].start_time,
        found["postprocess"].end_time, root.end_time,
    ]  # fmt: skip
    slack = 2_000_000  # of two clocks
    assert all(later - earlier > -slack for earlier, later in itertools.pairwise(order)), order
    assert found["run"].attributes["infersdk.batch"] == batch
    return root


def test_over_http(traced: Any, spans: Any) -> None:
    path = "/v2/models/simple/infer"
    assert ask(traced.http_port, path, simple_body(), headers={"traceparent": PARENT}).status == 200
    root = check(spans(), f"POST {path}", 1)
    assert (root.context.trace_id, root.parent.span_id) == (TRACE_ID, SPAN_ID)
    assert dict(root.attributes) == {
        "http.request.method": "POST", "url.path": path, "http.response.status_code": 200, "infersdk.model": "simple",
    }  # fmt: skip


def test_over_grpc(traced: Any, spans: Any) -> None:
    a = np.zeros((1, 16), np.int32)
    inputs = inputs_of("grpc", {"INPUT0": a, "INPUT1": a}, "INT32")
    with client_of(traced, "grpc") as client:
        client.infer("simple", inputs, headers={"traceparent": PARENT})
    root = check(spans(), "inference.GRPCInferenceService/ModelInfer", 1)
    assert (root.context.trace_id, root.parent.span_id) == (TRACE_ID, SPAN_ID)
    assert root.attributes["rpc.grpc.status"] == "OK"
    assert root.attributes["infersdk.model"] == "simple"


def test_without_a_parent(traced: Any, spans: Any) -> None:
    assert ask(traced.http_port, "/v2/models/simple/infer", simple_body()).status == 200
    assert check(spans(), "POST /v2/models/simple/infer", 1).parent is None


def test_a_parent_that_is_not_sampled(traced: Any, spans: Any) -> None:
    headers = {"traceparent": f"{PARENT[:-1]}0"}
    assert ask(traced.http_port, "/v2/models/simple/infer", simple_body(), headers=headers).status == 200
    assert not spans()


def test_the_rows_of_a_request(traced: Any, exporter: Any) -> None:
    """Each has its stages; together they are three."""
    exporter.clear()
    assert ask(traced.http_port, "/v2/models/simple/infer", simple_body(3)).status == 200
    names = [span.name for span in exporter.get_finished_spans()]
    assert sorted(set(names)) == ["POST /v2/models/simple/infer", "decode", "postprocess", "queue", "run"]
    assert names.count("run") == 3


def test_other_paths_have_none(traced: Any, spans: Any) -> None:
    assert ask(traced.http_port, "/v2/health/ready").status == 200
    assert not spans()


def test_failures(traced: Any, spans: Any) -> None:
    """The client's are no errors of the server."""
    assert ask(traced.http_port, "/v2/models/simple/infer", {"inputs": []}).status == 400
    (root,) = spans().values()
    assert root.attributes["error.type"] == "INVALID_ARGUMENT"
    assert root.status.status_code is api.StatusCode.UNSET


def test_failures_of_the_model(traced: Any, spans: Any) -> None:
    texts = {"name": "INPUT0", "shape": [1, 16], "datatype": "BYTES", "data": ["x"] * 16}
    body = {"inputs": [texts, {**texts, "name": "INPUT1"}]}
    assert ask(traced.http_port, "/v2/models/simple_string/infer", body).status == 500
    root = spans()["POST /v2/models/simple_string/infer"]
    assert root.status.status_code is api.StatusCode.ERROR
    assert root.attributes["http.response.status_code"] == 500


def test_an_image(serve: Callable[..., Any], spans: Any) -> None:
    """The decoding of an image is in its span."""
    server = serve({"detector": {"type": "yolov5", "path": str(DETECTOR)}}, grpc_port=None, traces=True)
    data = io.BytesIO()
    Image.new("RGB", (2000, 1500)).save(data, "JPEG")
    assert ask(server.http_port, "/predict", data.getvalue()).status == 200
    found = spans()
    check(found, "POST /predict", 1)
    assert found["decode"].end_time - found["decode"].start_time > 1_000_000


def test_nothing_is_imported_without_traces() -> None:
    program = (
        "import sys, infersdk.serve; from infersdk.serve import Server; "
        "Server({'models': {'x': {}}}, http_port=0); assert not any('opentelemetry' in name for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


class Collector(BaseHTTPRequestHandler):
    """Takes what is exported."""

    def do_POST(self) -> None:
        self.server.bodies.append((self.path, self.rfile.read(int(self.headers["content-length"]))))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Nothing is printed."""


def test_spans_go_where_the_environment_says(tables: dict[str, Any], tmp_path: Any) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        collector.bodies = []  # type: ignore[attr-defined]
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        config = {
            "models": {"simple": tables["simple"]},
            "server": {"http_port": 0, "grpc_port": None, "traces": True},
        }
        (tmp_path / "app.json").write_text(json.dumps(config))
        program = (
            "import sys, threading, urllib.request\n"
            "from infersdk.serve import Server\n"
            "with Server(sys.argv[1]).start() as server:\n"
            "    url = f'http://127.0.0.1:{server.http_port}/v2/models/simple/infer'\n"
            "    urllib.request.urlopen(url, sys.argv[2].encode()).read()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "app.json"), json.dumps(simple_body())],
            check=True, timeout=120, capture_output=True, text=True,
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}"},
        )  # fmt: skip
        collector.shutdown()
        line = json.loads(next(line for line in done.stderr.splitlines() if line.startswith("{")))
    ((path, body),) = collector.bodies  # type: ignore[attr-defined]
    assert path == "/v1/traces"
    assert b"postprocess" in body
    assert b"service.name" in body
    assert bytes.fromhex(line["trace_id"]) in body  # the log names the trace


def test_a_collector_that_does_not_answer_delays_the_end_by_a_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    monkeypatch.setattr(api, "get_tracer_provider", api.ProxyTracerProvider)  # the process has none
    monkeypatch.setattr(tracing, "CLOSE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        traces = tracing.Tracing()
        traces.start("request", {}, {}).end(None, {}, {})
        began = time.monotonic()
        traces.close()
        assert time.monotonic() - began < 2
    assert "the last traces were not exported within 0.1 s, and may be lost" in caplog.text


def test_a_request_of_a_stream_whose_client_has_gone(traced: Any, spans: Any) -> None:
    admission = traced.repository.find("simple").admission
    x = np.ones((1, 16), np.int32)
    before, admission.running = admission.running, admission.slots  # as if others had all slots
    try:
        with client_of(traced, "grpc") as client:
            client.start_stream(lambda result, error: None)
            client.async_stream_infer("simple", inputs_of("grpc", {"INPUT0": x, "INPUT1": x}, "INT32"))
            until(lambda: admission.waiting)
            client.stop_stream(cancel_requests=True)
        until(spans)
    finally:
        admission.running = before
    (span,) = spans().values()
    assert (span.attributes["rpc.grpc.status"], span.attributes["error.type"]) == ("CANCELLED", "CANCELLED")
