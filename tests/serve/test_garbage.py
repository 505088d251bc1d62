"""What a process that serves leaves out of garbage collections."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
from served_requests import ask

from infersdk.serve import Server


def test_what_is_loaded_is_left_out_and_freed_later() -> None:
    code = """
        import gc, weakref
        from infersdk.serve.process import freeze

        class Model:
            def __init__(self):
                self.itself = self

        gc.disable()
        garbage = weakref.ref(Model())
        model = Model()
        freeze()
        assert garbage() is None
        assert gc.get_freeze_count() > 1000
        loaded, closed = model, weakref.ref(model)
        del model, loaded
        gc.collect()
        assert closed() is not None  # it is not looked at
        freeze()
        assert closed() is None
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


@pytest.mark.parametrize("owns_process", [True, False])
def test_when_a_server_does_so(tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch, owns_process: bool) -> None:
    """When its models are loaded, and when another version has taken the place of one; only where it is alone."""
    calls: list[str] = []
    frozen = threading.Semaphore(0)

    def freeze() -> None:
        calls.append(server.repository.models["simple"].state)
        frozen.release()

    monkeypatch.setattr("infersdk.serve.server.freeze", freeze)
    server = Server({"models": {"simple": tables["simple"]}}, http_port=0, grpc_port=None, model_control=True)
    listening = threading.Event()
    thread = threading.Thread(
        target=server.run, args=[lambda _: listening.set()], kwargs={"owns_process": owns_process}
    )
    thread.start()
    try:
        assert listening.wait(60)
        assert len(calls) == owns_process
        assert ask(server.http_port, "/v2/repository/models/simple/load", b"{}").status == 200
        if owns_process:
            for _ in range(2):
                assert frozen.acquire(timeout=60)
        else:
            assert not frozen.acquire(timeout=0.2)
    finally:
        server.stop()
        thread.join(60)
    assert calls == ["READY"] * (2 * owns_process)
