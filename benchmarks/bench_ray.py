"""Ray Data with `ImageBatches` against `map()` in process: images a second of one worker, alternately.

    pytest benchmarks/bench_ray.py -q -s

The same JPEG files go through the same wrapper, loaded in the same way. Of Ray Data counts the time from the end of the
first batch to the end of the last one, as the worker sees it: how long a cluster takes to start is no part of it. So it
is with `map()`. `pip install "infersdk[cpu,ray]"`.

INFERSDK_BENCH_IMAGES is how many images a round has (default 640), INFERSDK_BENCH_ROUNDS how many rounds there are
(default 5); INFERSDK_BENCH_BACKEND and INFERSDK_BENCH_DEVICE choose what runs the detector.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import infersdk
from infersdk.bench.statistics import median_of_rounds

ray: Any = pytest.importorskip("ray")
IMAGES = int(os.environ.get("INFERSDK_BENCH_IMAGES", "640"))
ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "5"))
BACKEND = os.environ.get("INFERSDK_BENCH_BACKEND", "onnxruntime")
DEVICE = os.environ.get("INFERSDK_BENCH_DEVICE")
BATCH = 64


def test_ray_data(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claim: Callable[..., None]) -> None:
    """One worker with all processors, against this process."""
    from infersdk.integrations.ray import ImageBatches
    from infersdk.models import create

    class Stamped(ImageBatches):
        """Writes down when each batch was done."""

        def __call__(self, batch: Any) -> Any:
            found = super().__call__(batch)
            return {"results": found["results"], "done": np.full(len(found["error"]), time.monotonic())}

    table: dict[str, Any] = {
        "type": "yolov5", "path": str(assets / "models" / "yolov5n.onnx"), "backend": BACKEND, "max_batch": 8,
    }  # fmt: skip
    if DEVICE:
        table["device"] = DEVICE
    config = {"models": {"detector": table}}
    files = [path.read_bytes() for path in sorted((assets / "coco" / "val").glob("*.jpg"))]
    images = list(islice(cycle(files), IMAGES))

    def by_ray() -> float:
        data = ray.data.from_items([{"bytes": image} for image in images]).map_batches(
            Stamped, fn_constructor_kwargs={"config": config, "model": "detector"}, batch_size=BATCH, concurrency=1,
            num_cpus=1, num_gpus=1 if DEVICE and DEVICE.startswith("cuda") else 0,
        )  # fmt: skip
        ended = sorted(row["done"] for row in data.take_all())
        assert len(ended) == IMAGES
        return (IMAGES - BATCH) / (ended[-1] - ended[0])

    # Ray's workers look for modules where this process does, and in its folder: they shall find the installed package.
    checkout = Path(__file__).resolve().parents[1]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry or ".").resolve() != checkout])
    package = Path(infersdk.__path__[0]).parent
    paths = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
    ray.init(
        include_dashboard=False, log_to_driver=False, configure_logging=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )  # fmt: skip
    try:
        with create(config)["detector"] as detector:
            detector.warm_up()

            def by_map() -> float:
                ended = [time.monotonic() for _ in detector.map(images)]
                return (IMAGES - BATCH) / (ended[-1] - ended[BATCH - 1])

            rates = [(by_ray(), by_map()) for _ in range(ROUNDS)]
    finally:
        ray.shutdown()
    ratio = median_of_rounds([ours / other for ours, other in rates])
    claim("Ray Data against map()", ratio.value, low=ratio.low, high=ratio.high)
    own, other = (float(np.median([row[i] for row in rates])) for i in (0, 1))
    interval = "" if ratio.low is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
    print(f"\nRay Data: {own:.1f} images/s, map() {other:.1f}: {ratio.value:.3f}{interval}, target at least 0.95")
