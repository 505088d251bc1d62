"""README's table of speed, from docs/benchmarks/results.json.

    python benchmarks/table.py [--check]

The rows below say which figures are shown: the ratio of two medians that pytest-benchmark took, or one that a benchmark
kept with `claim()`. A figure that is not in the results is left out. `--check` writes nothing, and exits with 1 if
README does not show the results.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "benchmarks" / "results.json"
BEGIN, END = "<!-- speed: written by benchmarks/table.py -->", "<!-- /speed -->"


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        what, against: what was measured, and what it is compared with.
        file: the benchmark.
        name: of the claim; or the tests whose median is ours, the first that ran.
        theirs: the test whose median is theirs; None for a claim.
        share: shown in percent, not as a multiple.
    """

    what: str
    against: str
    file: str
    name: str | tuple[str, ...]
    theirs: str | None = None
    share: bool = False

    def cell(self, results: dict[str, Any]) -> str | None:
        """The table's text: the ratio, and its interval where there is one."""
        ratio, low, high = self.ratio(results)
        if ratio is None:
            return None
        if low is None or high is None:
            return self._text(ratio)
        return f"{self._text(ratio)} ({self._text(low)} to {self._text(high)})"

    def _text(self, ratio: float) -> str:
        return f"{ratio:.1%}" if self.share else f"{ratio:.2f} x" if ratio < 2 else f"{ratio:.1f} x"

    def ratio(self, results: dict[str, Any]) -> tuple[float | None, float | None, float | None]:
        """With the ends of its interval."""
        tests = results["files"].get(self.file, {}).get("tests", [])
        if self.theirs is None:
            kept = [c for test in tests for c in test["claims"] if c["name"] == self.name]
            return (kept[0]["ratio"], kept[0]["low"], kept[0]["high"]) if kept else (None, None, None)
        times = {test["name"]: test["time"]["median"] for test in tests if "time" in test}
        ours = next((times[name] for name in self.name if name in times), None)
        return (times[self.theirs] / ours if ours and self.theirs in times else None), None, None


SIMD = ("avx512", "avx2", "none")
OTHERS = "bench_against_others.py"
ROWS = [
    Row(
        "letterbox + normalise, 1080p, one thread", "OpenCV and NumPy", "bench_preprocess.py",
        tuple(f"test_letterbox_ours[1080p-{simd}]" for simd in SIMD), "test_letterbox_opencv_numpy[1080p]",
    ),
    Row(
        "decode + NMS, YOLOv5's 25,200 boxes", "NumPy and OpenCV's NMS", "bench_postprocess.py",
        ("test_yolov5_deployed[ours]",), "test_yolov5_deployed[numpy_cv2]",
    ),
    Row("all around the engine, bus.jpg", "what YOLOv5's users write", "bench_detector.py", "images/bus.jpg"),
    Row("file to boxes, yolov8n, ONNX Runtime", "Ultralytics' predictor", OTHERS, "ultralytics"),
    Row("file to boxes, yolov8n, OpenVINO", "OpenVINO's model_api", OTHERS, "model_api"),
    Row("file to boxes, yolov8n, ONNX Runtime", "polyinfer with OpenCV and NumPy", OTHERS, "polyinfer"),
    Row(
        "64 threads submitting single images, yolov5n, ONNX Runtime", "a plain loop over full batches",
        "bench_pipeline.py", "submitters, onnxruntime", share=True,
    ),
    Row(
        "the same, OpenVINO", "a plain loop over full batches", "bench_pipeline.py", "submitters, openvino", share=True
    ),
    Row(
        "64 threads to boxes, OpenVINO, 2 streams", "its AsyncInferQueue, without boxes", "bench_pipeline.py",
        "AsyncInferQueue",
    ),
    Row(
        "images/s reported by `infersdk bench`, OpenVINO", "benchmark_app", OTHERS, "benchmark_app, batch 1", share=True
    ),
    Row("the same, ONNX Runtime", "a loop by hand", OTHERS, "loop by hand, batch 1", share=True),
]  # fmt: skip


def table(results: dict[str, Any]) -> str:
    """The table, and when and where it was measured."""
    lines = ["| what | against | |", "|---|---|---|"]
    for row in ROWS:
        if (cell := row.cell(results)) is not None:
            lines.append(f"| {row.what} | {row.against} | {cell} |")
    machine = results["machine"]
    where = f"{machine['cores']} cores ({machine['processor']}), Python {machine['python']}"
    lines += [
        "",
        f"Measured on {results['created'][:10]} on {where} by `python benchmarks/run.py`, whose figures are in",
    ]
    lines += ["[results.md](docs/benchmarks/results.md). In brackets is the interval that the benchmark states."]
    return "\n".join(lines)


def replaced(readme: str, new: str) -> str:
    """README with what stands between the marks replaced."""
    head, mark, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"README.md has no lines {BEGIN} and {END}")
    return f"{head}{mark}\n{new}\n{end}{tail}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if README differs")
    arguments = parser.parse_args()
    path = ROOT / "README.md"
    old = path.read_text()
    new = replaced(old, table(json.loads(RESULTS.read_text())))
    if arguments.check:
        return int(new != old)
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
