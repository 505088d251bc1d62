"""Detectors that decode natively against the same networks with their decoding inside, in turns in one process.

Run: `python benchmarks/bench_raw_head.py [--rounds 40] [--threads 1]`. Each round times a call of either wrapper, from
an array to boxes, so the ratio is of all that a call does: preprocessing, engine, decoding, NMS. The shares of the
engine and of what is behind it are printed apart. The boxes are checked to be the same first.

With `--threads 0` the rounds of `map()` follow: images a second from JPEG files, in batches of requests, as a server
runs them.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from PIL import Image
from rounds import Spread, figures

from infersdk.models import load

ASSETS = Path(os.environ.get("INFERSDK_ASSETS", Path(__file__).resolve().parent.parent.parent / "shared" / "assets"))
MODELS = ("yolov5n", "yolov5s-random", "yolov8n")
#: The stages of a call that are compared.
STAGES = ("infer", "postprocess", "total")


def measure(path: Path, backend: str, image: Any, rounds: int, **options: Any) -> None:
    """Prints the milliseconds of both, and the ratios."""
    with load(path, backend, **options) as native, load(path, backend, decode_head="graph", **options) as graph:
        if native.decode_head_used != "native":
            print(f"{path.stem} on {backend}: its graph does not prove its head")
            return
        got, want = native(image), graph(image)
        assert len(got) == len(want)
        np.testing.assert_allclose(got.scores, want.scores, atol=1e-4)
        kept: dict[str, list[tuple[float, ...]]] = {"native": [], "graph": []}

        def run(name: str, model: Any) -> float:
            model(image)
            kept[name].append(tuple(getattr(model.timings, stage) for stage in STAGES))
            return float(model.timings.total)

        figures({"native": lambda: run("native", native), "graph": lambda: run("graph", graph)}, rounds, warm_up=5)
    times = {name: 1e3 * np.array(values[5:]) for name, values in kept.items()}
    print(f"{path.stem} on {backend}, {len(got)} boxes")
    for index, stage in enumerate(STAGES):
        a, b = times["native"][:, index], times["graph"][:, index]
        print(
            f"  {stage:12} native {np.median(a):8.3f} ms, graph {np.median(b):8.3f} ms; "
            f"native / graph {Spread.of(a / b):.3f}, of the medians {np.median(a) / np.median(b):.3f}"
        )


def measure_map(path: Path, backend: str, file: bytes, rounds: int) -> None:
    """Prints the images a second of both, and the ratio."""
    count = 24
    with (
        load(path, backend, max_batch=8) as native,
        load(path, backend, max_batch=8, decode_head="graph") as graph,
    ):

        def run(model: Any) -> float:
            start = perf_counter()
            for _ in model.map([file] * count):
                pass
            return count / (perf_counter() - start)

        speeds = figures({"native": lambda: run(native), "graph": lambda: run(graph)}, rounds, warm_up=4)
    ratio = Spread.of(speeds["native"] / speeds["graph"])
    each = ", ".join(f"{name} {np.median(values):.1f}" for name, values in speeds.items())
    print(f"  map()        {each} images/s; native / graph {ratio:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1, help="of the runtime; 0 leaves it the choice")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--backends", nargs="+", default=["onnxruntime", "openvino"])
    arguments = parser.parse_args()
    image = np.ascontiguousarray(np.asarray(Image.open(ASSETS / "images" / "bus.jpg"))[..., ::-1])
    options = {"threads": arguments.threads} if arguments.threads else {}
    for model in arguments.models:
        for backend in arguments.backends:
            path = ASSETS / "models" / f"{model}.onnx"
            measure(path, backend, image, arguments.rounds, **options)
            if not options:
                measure_map(path, backend, (ASSETS / "images" / "bus.jpg").read_bytes(), max(arguments.rounds // 4, 3))


if __name__ == "__main__":
    main()
