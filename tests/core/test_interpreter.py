"""The interpreter for further processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from infersdk.bench.cold_start import cold_start
from infersdk.bench.worker_process import WorkerProcess
from infersdk.core.interpreter import own_interpreter
from infersdk.errors import ConfigError
from infersdk.importers.processes import worker


def convert() -> None:
    with worker("torch"):
        pass


def test_an_installed_python() -> None:
    assert own_interpreter() == sys.executable


@pytest.mark.parametrize(
    "start", [own_interpreter, lambda: WorkerProcess(Path(), 1.0), lambda: cold_start({}, 1.0), convert]
)
def test_an_application_with_python(start: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", "/opt/app/no_such_app")  # a start would fail
    with pytest.raises(ConfigError, match="'/opt/app/no_such_app' is an application that contains Python"):
        start()
