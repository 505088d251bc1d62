"""Short runs of a client that is alone happen in the thread of the event loop; all others do not."""

from __future__ import annotations

import importlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from served_requests import NAMES, inputs_of

from infersdk.serve.rows import _RowBuffer

LOOP = "infersdk-serve"


@pytest.fixture(scope="module")
def patient(tables: dict[str, Any]) -> Iterator[Any]:
    """A server of one model, whose limit also holds where other processes take the processors."""
    from infersdk.serve import Server

    models = {"simple": {**tables["simple"], "pipeline": {"inline_limit": 0.005}}}
    with Server({"models": models}, http_port=0, grpc_port=0, access_log=False).start() as running:
        yield running


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """How often the loop's thread, and others, ran a batch."""
    counter: Counter[bool] = Counter()
    run = _RowBuffer.run

    def watched(buffer: _RowBuffer, count: int) -> None:
        counter[threading.current_thread().name == LOOP] += 1
        run(buffer, count)

    monkeypatch.setattr(_RowBuffer, "run", watched)
    return counter


def ask(client: Any, protocol: str, times: int) -> None:
    left, right = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
    for _ in range(times):
        result = client.infer("simple", inputs_of(protocol, {"INPUT0": left, "INPUT1": right}, "INT32"))
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), left + right)


@pytest.mark.parametrize("protocol", NAMES)
def test_short_runs_and_long_ones(
    patient: Any, protocol: str, threads: Counter[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, port = importlib.import_module(NAMES[protocol]), getattr(patient, f"{protocol}_port")
    with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
        ask(client, protocol, 200)
        threads.clear()
        ask(client, protocol, 50)
        assert threads[True] > 30
        run = _RowBuffer.run

        def slow(buffer: _RowBuffer, count: int) -> None:
            time.sleep(0.05)
            run(buffer, count)

        monkeypatch.setattr(_RowBuffer, "run", slow)
        ask(client, protocol, 3)  # the first of them tells
        threads.clear()
        ask(client, protocol, 10)
        assert threads == {False: 10}
