"""INT8: ranges of activations from data of yours, and a graph that every backend runs with them.

::

    with YOLOv5("yolov5n.onnx") as model:
        table = quant.calibrate("yolov5n.onnx", quant.ImageInputs(model, images))
    table.save("yolov5n.calibration.json")
    quant.quantize("yolov5n.onnx", "yolov5n.int8.onnx", table)

Calibration and rewriting need the `onnx` and `onnxruntime` packages, which are imported when they are used.
"""

from .graph import QuantizedGraph, quantize
from .histogram import Histogram, Range, entropy_threshold, quantize_expand
from .inputs import ImageInputs
from .measure import Speed, agreement, compare_speed
from .observe import Observations, calibrate, observe
from .search import LayerCost, SearchReport, best_method, search
from .table import CalibrationTable, TensorRange, read_tensorrt_cache

__all__ = [
    "CalibrationTable",
    "Histogram",
    "ImageInputs",
    "LayerCost",
    "Observations",
    "QuantizedGraph",
    "Range",
    "SearchReport",
    "Speed",
    "TensorRange",
    "agreement",
    "best_method",
    "calibrate",
    "compare_speed",
    "entropy_threshold",
    "observe",
    "quantize",
    "quantize_expand",
    "read_tensorrt_cache",
    "search",
]
