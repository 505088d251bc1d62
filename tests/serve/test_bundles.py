"""Bundles behind the server: golden samples at an interval, a reload that is refused, and shadows."""

from __future__ import annotations

import asyncio
import shutil
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
    assert metric(server, 'infersdk_golden_checks_total{model="digits",outcome="fail"') == 1
    assert ask(server.http_port, "/v2/health/ready").status == 200
    assert predict(server) == before


def test_the_samples_of_a_part_that_differ(bundle: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    """A composition is checked as its parts are."""
    path = with_other_results(bundle, tmp_path / "other.infer")
    server = run({"type": "tiled", "model": {"path": str(path), "verify": "never"}}, verify=0.2)
    (endpoint,) = server.repository.endpoints()
    until(lambda: endpoint.fault is not None)
    assert "the golden samples differ in postprocessing" in str(endpoint.fault)
    until(lambda: server.repository.models["digits"].reason.startswith(repr(str(path))))
    assert server.repository.models["digits"].loads == 1
    assert ask(server.http_port, "/v2/health/ready").status == 400


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


def test_a_shadow_without_the_key_of_its_model(bundle: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    pytest.importorskip("cryptography")
    pack(DETECTOR, tmp_path / "sealed.infer", images=[IMAGE], encrypt=bytes(32))
    (tmp_path / "key").write_bytes(bytes(32))
    sealed = {"path": str(tmp_path / "sealed.infer"), "key": f"file:{tmp_path / 'key'}"}
    run({**sealed, "shadow": {"path": str(bundle), "key": None}})
    with pytest.raises(ConfigError, match=r"models\.digits\.shadow: .* is not encrypted, and a key is given"):
        run({**sealed, "shadow": {"path": str(bundle)}})


def test_a_shadow_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets as many images as it has slots. The request that offers an image does not wait for it."""
    with YOLOv5(DETECTOR) as model:
        result, original, slots = model(IMAGE), model.infer, model.details.pipelines[0].slots

        async def run() -> None:
            goes_on = asyncio.Event()

            async def infer(image: Any, **settings: Any) -> Any:
                await goes_on.wait()
                return await original(image, **settings)

            async def outcomes(compared: int, dropped: int, failed: int) -> None:
                while shadow.outcomes != {"compared": compared, "dropped": dropped, "failed": failed}:
                    await asyncio.sleep(0.01)

            monkeypatch.setattr(model, "infer", infer)
            shadow = Shadow("digits", model, 1.0)
            shadow.offer(IMAGE.read_bytes(), {}, result)
            for _ in range(slots):
                shadow.offer(b"no image", {}, result)
            await asyncio.wait_for(outcomes(0, 1, 0), 10)
            goes_on.set()
            await asyncio.wait_for(outcomes(1, 1, slots - 1), 10)
            shadow.close()
            shadow.offer(IMAGE.read_bytes(), {}, result)
            await asyncio.wait_for(outcomes(1, 2, slots - 1), 10)

        asyncio.run(run())


def test_a_shadow_whose_results_have_no_measure(tmp_path: Path, run: Callable[..., Any]) -> None:
    import stranger_task

    network = stranger_task.network(tmp_path / "depth.onnx")
    server = run({"type": "stranger_task:Mean", "path": str(network), "shadow": {"share": 1}})
    predict(server)
    until(lambda: metric(server, 'infersdk_shadow_images_total{model="digits",outcome="failed"') == 1)


def test_wrong_shadows(bundle: Path, run: Callable[..., Any]) -> None:
    for shadow, message in (
        (3, "shadow is a table"), ({"share": 2}, "models.digits.shadow.*share"),
        ({"confidence": 1}, r"^models\.digits\.shadow: .*confidence"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            run({"path": str(bundle), "shadow": shadow})
