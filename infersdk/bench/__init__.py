"""Speed, accuracy, memory and energy of a model on each backend, in each precision, with each batch.

::

    from infersdk.bench import BenchSettings, bench, combine

    report = bench(combine(["yolov5n.onnx"], ["onnxruntime", "openvino"], batches=[1, 8]), BenchSettings(time=5))
    for row in report.rows:
        print(row.name, row.status, row.latency, row.best_throughput)

Each combination runs in a process of its own, and all are measured in each round. `infersdk bench` is this on the
command line, and `infersdk tune` (`infersdk.bench.tune.tune()`) searches the best settings.
"""

from .plan import BenchSettings, Combination, combine
from .report import Report, Row, read_report
from .run import bench

__all__ = ["BenchSettings", "Combination", "Report", "Row", "bench", "combine", "read_report"]
