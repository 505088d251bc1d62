"""INT8 quantisation: calibration on sample data, and quantised graphs for each backend.

::

    work = quant.Workflow("yolov5n.onnx", images, lambda path: YOLOv5(path, "openvino"), target="openvino")
    work.run("yolov5n.int8.onnx")

The same in steps::

    with YOLOv5("yolov5n.onnx") as model:
        table = quant.calibrate("yolov5n.onnx", quant.ImageInputs(model, images))
    table.save("yolov5n.calibration.json")
    quant.quantize("yolov5n.onnx", "yolov5n.int8.onnx", table, target="openvino")

Requires the `onnx`, `onnx_ir` and `onnxruntime` packages, which are imported on first use.
"""

from .histogram import ChannelRanges, Histogram, entropy_threshold
from .layer_errors import layer_errors
from .layer_times import layer_times
from .observe import ImageInputs, Observations, Observer, calibrate
from .plan import Plan, plan
from .quantize import QuantizedGraph, quantize
from .report import quantization_report
from .schemes import SCHEMES, Scheme, scheme_of_backend
from .search import CANDIDATES, Candidate, Choice, SearchReport, Step, choose, search
from .table import CalibrationTable, TensorRange, read_tensorrt_cache
from .workflow import Speed, Workflow, compare_speed

__all__ = [
    "CANDIDATES", "SCHEMES", "CalibrationTable", "Candidate", "ChannelRanges", "Choice", "Histogram", "ImageInputs",
    "Observations", "Observer", "Plan", "QuantizedGraph", "Scheme", "SearchReport", "Speed", "Step", "TensorRange",
    "Workflow", "calibrate", "choose", "compare_speed", "entropy_threshold", "layer_errors", "layer_times",
    "plan", "quantization_report", "quantize", "read_tensorrt_cache", "scheme_of_backend", "search",
]  # fmt: skip
