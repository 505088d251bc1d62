"""INT8: ranges of activations from data of yours, and a graph that every backend runs with them.

::

    with YOLOv5("yolov5n.onnx") as model:
        table = quant.calibrate("yolov5n.onnx", quant.ImageInputs(model, images))
    table.save("yolov5n.calibration.json")
    quant.quantize("yolov5n.onnx", "yolov5n.int8.onnx", table)

Calibration and rewriting need the `onnx` and `onnxruntime` packages, which are imported when they are used.
"""

from .histogram import ChannelRanges, Histogram, entropy_threshold, quantize_expand
from .inputs import ImageInputs
from .observe import Observations, Observer, calibrate, observe
from .plan import Plan, plan
from .quantize import QuantizedGraph, quantize
from .schemes import SCHEMES, Scheme
from .table import CalibrationTable, TensorRange, read_tensorrt_cache
