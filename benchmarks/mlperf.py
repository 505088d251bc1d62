"""MLPerf's LoadGen over a wrapper's pipeline: its scenarios, its clock, its verdict.

    python benchmarks/mlperf.py yolov5n.onnx images/ --scenario offline
    python benchmarks/mlperf.py squeezenet1.1.onnx images/ --type classifier --scenario server --qps 40 --latency 0.5

LoadGen (`pip install mlcommons-loadgen`) decides when each sample comes, measures, and says whether the run is valid. A
sample is the bytes of an image file: decoding, preprocessing, the network and postprocessing are all in the time.
Single stream submits one sample after another, server at random times (a run is valid if the 99th percentile keeps
`--latency`), offline all at once. `--seconds` is the least duration. The exit code is 0 if the run is valid.

A run offline is valid if it takes `--seconds`: give a `--qps` that is at least what the machine does. A run of a server
is valid from some 700 samples on, by which LoadGen knows the 99th percentile: give `--qps` times `--seconds` as many.

This is LoadGen's method on a model and data of one's own. It is no result of MLPerf, whose rules fix both.
"""

from __future__ import annotations

import argparse
import array
import json
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infersdk.models import load

__all__ = ["main"]

SCENARIOS = {"single-stream": "SingleStream", "offline": "Offline", "server": "Server"}


class SystemUnderTest:
    """Answers LoadGen's samples by `submit()`.

    Args:
        model: a wrapper.
        images: the encoded images, by LoadGen's index.
    """

    def __init__(self, model: Any, images: Sequence[bytes]) -> None:
        self._model, self._images = model, images
        self.failures: list[BaseException] = []
        self._lock = threading.Lock()

    def issue(self, samples: Sequence[Any]) -> None:
        """LoadGen's callback: the samples of a query. It returns at once, apart from waiting for a slot."""
        for sample in samples:
            future = self._model.submit(self._images[sample.index])
            future.add_done_callback(lambda future, number=sample.id: self._complete(future, number))

    def _complete(self, future: Any, number: int) -> None:
        import mlperf_loadgen as loadgen

        count = 0
        if (error := future.exception()) is None:
            count = len(future.result())
        else:
            with self._lock:
                self.failures.append(error)
        answer = array.array("i", [count])  # LoadGen copies it before it returns
        address, length = answer.buffer_info()
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(number, address, length * answer.itemsize)])

    def flush(self) -> None:
        """LoadGen's callback when the last query was issued: nothing is held back."""


def run(sut: SystemUnderTest, count: int, arguments: argparse.Namespace, folder: Path) -> dict[str, str]:
    """One run; LoadGen's summary by its own keys.

    Args:
        count: of the images.
        folder: for LoadGen's logs.
    """
    import mlperf_loadgen as loadgen

    settings = loadgen.TestSettings()
    settings.scenario = getattr(loadgen.TestScenario, SCENARIOS[arguments.scenario])
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms = int(arguments.seconds * 1000)
    settings.min_query_count = 1 if arguments.scenario == "offline" else arguments.queries
    settings.offline_expected_qps = arguments.qps
    settings.server_target_qps = arguments.qps
    settings.server_target_latency_ns = int(arguments.latency * 1e9)
    settings.server_target_latency_percentile = 0.99
    settings.single_stream_expected_latency_ns = int(1e9 / arguments.qps)
    outputs = loadgen.LogOutputSettings()
    outputs.outdir = str(folder)
    log = loadgen.LogSettings()
    log.log_output = outputs
    system = loadgen.ConstructSUT(sut.issue, sut.flush)
    library = loadgen.ConstructQSL(count, count, lambda samples: None, lambda samples: None)
    try:
        loadgen.StartTestWithLogSettings(system, library, settings, log)
    finally:
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(system)
    summary = (folder / "mlperf_log_summary.txt").read_text()
    pairs = (line.split(":", 1) for line in summary.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a scenario, and prints LoadGen's summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path, help="a folder")
    parser.add_argument("--scenario", choices=SCENARIOS, default="single-stream")
    parser.add_argument("--type", help="of the wrapper; by default by the file")
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--device")
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--queries", type=int, default=100, help="at least (default: %(default)s)")
    parser.add_argument("--qps", type=float, default=20.0, help="samples a second that are expected, or sent")
    parser.add_argument("--latency", type=float, default=1.0, help="seconds, of the server's 99th percentile")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    suffixes = {".jpg", ".jpeg", ".png"}
    images = [path.read_bytes() for path in sorted(arguments.images.iterdir()) if path.suffix.lower() in suffixes]
    if not images:
        parser.error(f"no images in {arguments.images}")
    options: dict[str, Any] = {} if arguments.device is None else {"device": arguments.device}
    with load(
        arguments.model, arguments.backend, type=arguments.type, max_batch=arguments.max_batch, **options
    ) as model:
        model.warm_up()
        sut = SystemUnderTest(model, images)
        with tempfile.TemporaryDirectory() as folder:
            result = run(sut, len(images), arguments, Path(folder))
    valid = result.get("Result is") == "VALID" and not sut.failures
    if arguments.json:
        print(json.dumps({"valid": valid, "failures": len(sut.failures), **result}))
    else:
        print("\n".join(f"{key}: {value}" for key, value in result.items()))
        for error in sut.failures[:3]:
            print(f"failed: {error}", file=sys.stderr)
    return 0 if valid else 1


if __name__ == "__main__":
    sys.exit(main())
