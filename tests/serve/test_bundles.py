"""Bundles behind the server: golden samples at an interval, a reload that is refused, and shadows."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_files import with_other_results
from served_requests import ask
from waiting import until

from infersdk.bundles import pack
from infersdk.data import DETECTOR, IMAGE
from infersdk.errors import ConfigError, GoldenSampleError
from infersdk.models import YOLOv5
from infersdk.serve.shadow import Shadow

pytest.importorskip("uvicorn")


@pytest.fixture(scope="module", name="bundle")
def _bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "digits.infer"
    pack(DETECTOR, path, images=[IMAGE])
    return path


@pytest.fixture
def run(serve: Callable[..., Any]) -> Callable[..., Any]:
    """Starts a server of one model."""
    return lambda table, **settings: serve({"digits": table}, grpc_port=None, model_control=True, **settings)


def predict(server: Any) -> Any:
    answer = ask(server.http_port, "/predict?model=digits", IMAGE.read_bytes())
    assert answer.status == 200, answer.body
    return answer.json()["results"]


def metric(server: Any, name: str) -> float:
    text = ask(server.http_port, "/metrics").body.decode()
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


def test_samples_that_differ_make_the_model_not_ready(bundle: Path, run: Callable[..., Any]) -> None:
    server = run({"path": str(bundle)}, verify=0.2)
    before = predict(server)
    (endpoint,) = server.repository.endpoints()
    until(lambda: metric(server, 'infersdk_golden_checks_total{model="digits",outcome="pass"') > 0)

    def differ() -> None:
        raise GoldenSampleError("the golden samples differ in network")

    endpoint.check_samples = differ
    until(lambda: endpoint.fault is not None)
    assert endpoint.golden_checks["fail"] == 1
    until(lambda: server.repository.models["digits"].loads == 2)
    assert ask(server.http_port, "/v2/health/ready").status == 200
    assert predict(server) == before


def test_a_model_can_be_unloaded_while_its_samples_run(bundle: Path, run: Callable[..., Any]) -> None:
    server = run({"path": str(bundle)}, verify=0.001, drain=0)
    for _ in range(5):
        for what in ("unload", "load"):
            assert ask(server.http_port, f"/v2/repository/models/digits/{what}", {}).status == 200


def test_a_version_that_fails_its_samples_does_not_take_over(
    bundle: Path, tmp_path: Path, run: Callable[..., Any]
) -> None:
    served = tmp_path / "served.infer"
    shutil.copyfile(bundle, served)
    server = run({"path": str(served)})
    before = predict(server)
    with_other_results(bundle, served)
    answer = ask(server.http_port, "/v2/repository/models/digits/load", {})
    assert answer.status == 400
    assert "the golden samples differ in postprocessing" in answer.body.decode()
    assert predict(server) == before


def test_a_shadow(bundle: Path, run: Callable[..., Any]) -> None:
    """It gets the images, and clients get results of the model alone."""
    server = run({"path": str(bundle), "shadow": {"conf": 0.93, "share": 1}})
    alone = predict(server)
    for _ in range(4):
        assert predict(server) == alone
    (endpoint,) = server.repository.endpoints()
    until(lambda: sum(endpoint.shadow.outcomes.values()) == 5)
    compared = endpoint.shadow.outcomes["compared"]
    assert compared > 0
    assert endpoint.shadow.outcomes["failed"] == 0
    assert metric(server, 'infersdk_shadow_images_total{model="digits",outcome="compared"') == compared
    assert 0 < metric(server, "infersdk_shadow_agreement_total{") < compared, "fewer boxes are above its threshold"


def test_a_shadow_that_reads_its_images_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a composition does. The event loop does not wait for it, and images beyond its slots are dropped."""
    with YOLOv5(DETECTOR) as model:
        result, reading, goes_on = model(IMAGE), threading.Event(), threading.Event()

        def submit(image: Any, **settings: Any) -> Any:
            reading.set()
            assert goes_on.wait(10)
            return original(image, **settings)

        original, slots = model.submit, model.details.pipelines[0].slots
        monkeypatch.setattr(model, "submit", submit)
        shadow = Shadow("digits", model, 1.0)
        shadow.offer(IMAGE.read_bytes(), {}, result)
        assert reading.wait(10)
        for _ in range(slots):
            shadow.offer(b"no image", {}, result)
        assert shadow.outcomes == {"compared": 0, "dropped": 1, "failed": 0}
        goes_on.set()
        until(lambda: shadow.outcomes == {"compared": 1, "dropped": 1, "failed": slots - 1})
        shadow.close()
        shadow.offer(IMAGE.read_bytes(), {}, result)
        assert shadow.outcomes["dropped"] == 2


def test_a_shadow_whose_results_have_no_measure(tmp_path: Path, run: Callable[..., Any]) -> None:
    import stranger_task

    network = stranger_task.network(tmp_path / "depth.onnx")
    server = run({"type": "stranger_task:Mean", "path": str(network), "shadow": {"share": 1}})
    predict(server)
    until(lambda: metric(server, 'infersdk_shadow_images_total{model="digits",outcome="failed"') == 1)


def test_wrong_shadows(bundle: Path, run: Callable[..., Any]) -> None:
    for shadow, message in (
        (3, "shadow is a table"), ({"share": 2}, "models.digits.shadow.*share"), ({"confidence": 1}, "confidence"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            run({"path": str(bundle), "shadow": shadow})
