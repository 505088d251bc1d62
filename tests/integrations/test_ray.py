"""A real Ray cluster of several processes on this machine: Ray Data and Ray Serve over the packaged models."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import infersdk
from infersdk.data import DETECTOR, IMAGE
from infersdk.errors import ConfigError, Overloaded
from infersdk.integrations.ray import ImageBatches, _Replica, deployment
from infersdk.models import YOLOv5

CONFIG = {
    "models": {
        "detector": {
            "type": "yolov5", "path": str(DETECTOR), "conf": 0.5, "class_agnostic": True, "options": {"threads": 1},
        }
    }
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Ray with two processors. Its workers find the package where this process has it."""
    ray: Any = pytest.importorskip("ray", reason='the tests of a cluster need it: pip install "infersdk[ray]"')
    pytest.importorskip("ray.data")
    package = Path(infersdk.__path__[0]).parent
    paths = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def expected() -> Any:
    with YOLOv5(DETECTOR, conf=0.5, class_agnostic=True) as detector:
        return json.loads(detector(IMAGE).to_json())


def images(count: int) -> list[dict[str, Any]]:
    data = Path(IMAGE).read_bytes()
    return [{"number": i, "bytes": data} for i in range(count)]


@pytest.mark.slow
def test_each_row_has_its_result(cluster: Any, expected: Any) -> None:
    rows = [*images(20), {"number": 20, "bytes": b"no image"}]
    found = cluster.data.from_items(rows).map_batches(
        ImageBatches, fn_constructor_kwargs={"config": CONFIG, "model": "detector"}, batch_size=4, concurrency=1
    )
    by_number = {row["number"]: row for row in found.take_all()}
    assert sorted(by_number) == list(range(21))
    for number in range(20):
        assert by_number[number]["error"] == ""
        assert [row["label"] for row in by_number[number]["results"]] == [row["label"] for row in expected]
        np.testing.assert_allclose(
            [row["xyxy"] for row in by_number[number]["results"]], [row["xyxy"] for row in expected], rtol=1e-6
        )
    assert len(by_number[20]["results"]) == 0
    assert "not an image" in by_number[20]["error"]


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_no_row(cluster: Any, tmp_path: Path) -> None:
    """The first batch kills its own process; Ray starts another one, and gives it the batch again."""
    flag = str(tmp_path / "killed")

    class KilledOnce(ImageBatches):
        def __call__(self, batch: Any) -> Any:
            import os
            import signal

            if not os.path.exists(flag):
                open(flag, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(batch)

    found = cluster.data.from_items(images(30)).map_batches(
        KilledOnce, fn_constructor_kwargs={"config": CONFIG, "model": "detector"}, batch_size=5, concurrency=1
    )
    rows = found.take_all()
    assert os.path.exists(flag)
    assert sorted(row["number"] for row in rows) == list(range(30))
    assert all(len(row["results"]) for row in rows)


@pytest.mark.slow
def test_a_deployment(cluster: Any, expected: Any) -> None:
    serve: Any = pytest.importorskip("ray.serve")
    try:
        handle = serve.run(deployment(CONFIG, "detector", ray_actor_options={"num_cpus": 1}), route_prefix=None)
        answers = [handle.remote(Path(IMAGE).read_bytes()) for _ in range(8)]
        for answer in answers:
            assert answer.result(timeout_s=60) == expected
        for path in ("/etc/passwd", Path("/etc/passwd")):
            with pytest.raises(Exception, match="text would be opened as a path"):
                handle.remote(path).result(timeout_s=60)
    finally:
        serve.shutdown()


@pytest.fixture(scope="module")
def replica() -> _Replica:
    return _Replica(CONFIG, "detector")


@pytest.mark.parametrize("path", ["/etc/passwd", Path("/etc/passwd")])
def test_a_replica_opens_no_path(replica: _Replica, path: Any) -> None:
    with pytest.raises(ConfigError, match=f"not a {type(path).__name__}; a Path or text would be opened as a path"):
        asyncio.run(replica(path))


@pytest.mark.parametrize(
    ("error", "status", "message", "headers"),
    [
        (None, 400, "not an image", {}),
        (Overloaded("all slots are taken"), 429, "all slots are taken", {"retry-after": "1"}),
        (RuntimeError("secret"), 500, "the server failed on this request", {}),
    ],
)
def test_a_request_over_http_that_fails(
    replica: _Replica,
    error: Exception | None,
    status: int,
    message: str,
    headers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: Any = pytest.importorskip("fastapi").requests

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"no image"}

    async def fails(image: bytes) -> Any:
        raise error

    if error is not None:
        monkeypatch.setattr(replica._model, "infer", fails)
    answer = asyncio.run(replica(requests.Request({"type": "http"}, receive)))
    assert (answer.status_code, message in json.loads(answer.body)["error"]) == (status, True), answer.body
    assert headers.items() <= dict(answer.headers).items()


def test_the_newest_version_is_loaded(expected: Any) -> None:
    versions = {"9": {"path": "none.onnx"}, "10": {"path": str(DETECTOR)}}
    table = {"type": "yolov5", "conf": 0.5, "class_agnostic": True, "versions": versions}
    (found,) = ImageBatches({"models": {"m": table}}, "m")({"bytes": np.array([IMAGE], object)})["results"]
    assert json.loads(json.dumps(found)) == expected


def test_an_unknown_model() -> None:
    with pytest.raises(ConfigError, match="the configuration has no model 'other'; it has detector"):
        ImageBatches(CONFIG, "other")
    with pytest.raises(ConfigError, match="the dataset has no column 'bytes'; it has image"):
        ImageBatches(CONFIG, "detector")({"image": np.zeros(1)})


def test_only_errors_of_images_are_results() -> None:
    batch = {"bytes": np.array([Path(IMAGE).read_bytes(), b"no image"], object)}
    assert ["not an image" in error for error in ImageBatches(CONFIG, "detector")(batch)["error"]] == [False, True]
    with pytest.raises(ConfigError, match="conf is 3"):
        ImageBatches(CONFIG, "detector", parameters={"conf": 3.0})(batch)
