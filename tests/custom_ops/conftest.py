"""The backends that run custom operators here."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["onnxruntime", "openvino"])
def backend(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)
