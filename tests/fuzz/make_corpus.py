"""Makes the corpus: small files of each kind, well-formed, always the same.

python tests/fuzz/make_corpus.py
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from PIL import Image

from infersdk import Tensor
from infersdk.quant import CalibrationTable
from infersdk.quant.table import TensorRange

CORPUS = Path(__file__).resolve().parent / "corpus"


def put(kind: str, name: str, data: bytes | str) -> None:
    path = CORPUS / kind / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def images() -> None:
    rng = np.random.default_rng(0)
    smooth = np.add.outer(np.arange(12), np.arange(16)).astype(np.uint8) * 8
    rgb = Image.fromarray(np.stack([smooth, smooth[::-1], rng.integers(0, 255, smooth.shape, np.uint8)], 2))
    forms: dict[str, tuple[Image.Image, str, dict[str, Any]]] = {
        "rgb.jpg": (rgb, "JPEG", {}), "gray.jpg": (rgb.convert("L"), "JPEG", {"quality": 40}),
        "progressive.jpg": (rgb, "JPEG", {"progressive": True}), "cmyk.jpg": (rgb.convert("CMYK"), "JPEG", {}),
        "rgb.png": (rgb, "PNG", {}), "palette.png": (rgb.convert("P"), "PNG", {"transparency": 0}),
        "gray16.png": (Image.fromarray(smooth.astype(np.uint16) * 200), "PNG", {}),
        "rgba.png": (rgb.convert("RGBA"), "PNG", {}), "one.png": (rgb.convert("1"), "PNG", {}),
        "rgb.webp": (rgb, "WEBP", {}), "lossless.webp": (rgb, "WEBP", {"lossless": True}), "rgb.bmp": (rgb, "BMP", {}),
        "rgb.gif": (rgb.convert("P"), "GIF", {}), "rgb.tiff": (rgb, "TIFF", {}),
        "lzw.tiff": (rgb, "TIFF", {"compression": "tiff_lzw"}), "rgb.ppm": (rgb, "PPM", {}),
        "gray.pgm": (rgb.convert("L"), "PPM", {}), "two.mpo": (rgb, "MPO", {"save_all": True, "append_images": [rgb]}),
        "frames.gif": (rgb, "GIF", {"save_all": True, "append_images": [rgb.rotate(180)]}),
        "frames.webp": (rgb, "WEBP", {"save_all": True, "append_images": [rgb.rotate(180)]}),
        "deflate.tiff": (rgb, "TIFF", {"compression": "tiff_adobe_deflate"}),
        "jpeg.tiff": (rgb, "TIFF", {"compression": "jpeg"}), "refused.eps": (rgb, "EPS", {}),
        "rgb.avif": (rgb, "AVIF", {"quality": 30}),
    }  # fmt: skip
    for name, (image, kind, options) in forms.items():
        buffer = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6
        image.save(buffer, kind, **options, **({"exif": exif} if kind == "JPEG" else {}))
        put("images", name, buffer.getvalue())


def tensors() -> None:
    for i, dtype in enumerate(("float32", "float16", "int32", "uint8", "int64", "bool")):
        array = np.arange(2 * (i + 1)).reshape(2, i + 1).astype(dtype)
        path = CORPUS / "tensors" / f"{dtype}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        Tensor.wrap(array).save(path)


def models() -> None:
    value, node = helper.make_tensor_value_info, helper.make_node
    weights = onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    head = onnx.numpy_helper.from_array(np.ones((1, 6, 8), np.float32), "h")
    graphs = {
        "conv.onnx": ([node("Conv", ["images", "w"], ["c"], "conv"), node("Relu", ["c"], ["y"], "relu")], [weights], ("b", 4, 6, 6)),
        "head.onnx": ([node("ReduceMax", ["images"], ["m"], axes=[1, 2, 3], keepdims=0), node("Reshape", ["m", "s"], ["r"]),
                       node("Mul", ["h", "r"], ["y"])],
                      [head, onnx.numpy_helper.from_array(np.array([-1, 1, 1]), "s")], ("b", 6, 8)),
        "branch.onnx": ([node("ReduceMax", ["images"], ["m"], keepdims=0), node("Constant", [], ["z"], value_float=0.5),
                         node("Greater", ["m", "z"], ["g"]),
                         node("If", ["g"], ["y"],
                              then_branch=helper.make_graph([node("Identity", ["images"], ["t"])], "t", [], [value("t", 1, None)]),
                              else_branch=helper.make_graph([node("Neg", ["images"], ["e"])], "e", [], [value("e", 1, None)]))],
                        [], None),
    }  # fmt: skip
    for name, (nodes, initializers, shape) in graphs.items():
        graph = helper.make_graph(
            nodes, "g", [value("images", TensorProto.FLOAT, ("b", 3, 8, 8))], [value("y", TensorProto.FLOAT, shape)],
            initializers,
        )  # fmt: skip
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="corpus"
        )
        helper.set_model_props(model, {"names": "{0: 'a', 1: 'b'}", "task": "detect", "stride": "8"})
        put("models", name, model.SerializeToString())
    external = helper.make_model(
        helper.make_graph([node("Identity", ["images"], ["y"])], "g", [value("images", 1, [1])], [value("y", 1, [1])], []),
        opset_imports=[helper.make_opsetid("", 13)], ir_version=8,
    )  # fmt: skip
    tensor = external.graph.initializer.add(name="e", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", "weights.bin"), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=text)
    put("models", "external.onnx", external.SerializeToString())


TOML = """# an application
[models.detector]
type = "yolov5"
path = "none.onnx"
backend = "onnxruntime"
conf = 0.25
size = [640, 384]
names = ["a", 'b']

[models.detector.options]
threads = 2

[models.detector.pipeline]
max_batch = 8

[models.second]
type = "classifier"
path = "none.onnx"
mean = [0.5, 0.5, 0.5]
"""
YAML = """# an application
defaults: &defaults
  backend: onnxruntime
  options: {threads: 2}
models:
  detector:
    <<: *defaults
    type: yolov5
    path: none.onnx
    conf: 0.25
    names: [a, "b", 'c']
  second: {type: classifier, path: none.onnx, mean: [0.5, 0.5, 0.5]}
when: 2026-01-01
text: |
  several
  lines
"""


def texts() -> None:
    put("configurations", "app.toml", TOML)
    put("configurations", "app.yaml", YAML)
    table = {"models": {"detector": {"type": "yolov8", "path": "none.onnx", "conf": 0.5, "options": {"threads": 1}}}}
    put("configurations", "app.json", json.dumps(table, indent=1))
    put("configurations", "empty.toml", "")
    ranges = {
        name: TensorRange(min=-i, max=i + 0.5, low=-i, high=i + 0.25, threshold=i + 1, mean=[0.5, -0.25][:i])
        for i, name in enumerate(("images", "c", "y"))
    }
    CalibrationTable(method="entropy", tensors=ranges, samples=8, model="0" * 64).save(CORPUS / "tables" / "table.json")
    put("tables", "trt.cache", "TRT-8601-EntropyCalibration2\nimages: 3c010204\nc: 3e800000\n(Unnamed): 7f7fffff\n")
    annotations = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 16, "height": 12}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "area": 12, "iscrowd": 0}],
        "categories": [{"id": 3, "name": "car"}],
    }
    put("tables", "coco.annotations.json", json.dumps(annotations))
    put("tables", "classes.names.txt", "person\ncar\n\nétoile\n")


def importers() -> None:
    """PNNX graphs of the pnnx package, and Keras files out of the archive of the importers' tests."""
    import subprocess
    import sys
    import tempfile

    import pnnx
    import torch

    sys.path.insert(0, str(CORPUS.parent.parent / "importers"))
    from test_keras import model_file

    nets = {
        "image": (torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, 2, 1), torch.nn.BatchNorm2d(4), torch.nn.SiLU(), torch.nn.MaxPool2d(2, ceil_mode=True),
            torch.nn.Upsample(scale_factor=2), torch.nn.Flatten(), torch.nn.LazyLinear(3), torch.nn.Softmax(1)), (1, 3, 12, 12)),
        "steps": (torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Conv1d(6, 6, 3, padding="same", groups=2), torch.nn.GLU(2),
                                      torch.nn.AdaptiveAvgPool1d(3)), (1, 6, 4)),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for name, (net, shape) in nets.items():
            path = Path(folder, f"{name}.pt")
            net(torch.zeros(shape))
            torch.jit.trace(net.eval(), torch.zeros(shape)).save(str(path))
            sizes = ",".join(map(str, shape))
            subprocess.run(
                [pnnx.EXEC_PATH, path.name, f"inputshape=[{sizes}]"], cwd=folder, check=True, capture_output=True
            )
            for suffix in ("param", "bin"):
                put("importers", f"{name}.{suffix}", Path(folder, f"{name}.pnnx.{suffix}").read_bytes())
        for name in ("conv_flatten_dense", "seq_rnn", "shared_dense"):
            put("importers", f"{name}.h5", model_file(name, Path(folder))[0].read_bytes())


def reports() -> None:
    """One of `infersdk bench` itself, of the packaged classifier."""
    import subprocess
    import sys

    from infersdk.data import CLASSIFIER

    target = CORPUS / "reports" / "bench.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "infersdk", "bench", str(CLASSIFIER), "--backends", "onnxruntime", "--time", "0.05",
               "--rounds", "3", "--preset", "unit", "--resize", "32", "-o", str(target)]  # fmt: skip
    subprocess.run(command, check=True)
    report = json.loads(target.read_text())
    report["machine"] = (
        {key: value for key, value in report["machine"].items() if isinstance(value, (int, float))}
        | {key: "corpus" for key, value in report["machine"].items() if isinstance(value, str)}
        if isinstance(report.get("machine"), dict)
        else report.get("machine")
    )
    text = json.dumps(report, indent=1).replace(str(CLASSIFIER), "classifier.onnx")
    target.write_text(text + "\n")


def bundles() -> None:
    from infersdk.bundles.manifest import Form, Manifest, Part
    from infersdk.bundles.packing import write_bundle

    golden = {"reference": "onnxruntime", "values": "values", "parameters": {}, "samples": [], "graphs": []}
    parts = {"model.onnx": b"model", "values": bytes(16), "golden.json": json.dumps(golden).encode()}
    manifest = Manifest(
        format=1, name="model", version="1", licence="", origin="", type="yolov8", settings={"conf": 0.4},
        classes=["a", "b"], forms=[Form("model.onnx", "fp32")], golden="golden.json",
        parts={name: Part.of(data) for name, data in parts.items()}, encryption=None, signer=None, created_by="",
    )  # fmt: skip
    (CORPUS / "bundles").mkdir(parents=True, exist_ok=True)
    write_bundle(CORPUS / "bundles" / "plain.infer", manifest, parts)


if __name__ == "__main__":
    (CORPUS / "tables").mkdir(parents=True, exist_ok=True)
    images()
    tensors()
    models()
    texts()
    bundles()
    importers()
    reports()
