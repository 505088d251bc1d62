"""What is fuzzed from Python: each target takes a generator, makes an input, and hands it to the package.

A target returns whether the input was accepted. An error of `infersdk.errors` is a refusal; any other is a finding, and
so are a check that fails, a case that takes too long, and the end of the process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from configuration_trees import configuration_trees
from grpc_targets import grpc_requests
from http_targets import http_connections, http_parameters
from mutation import mutate, mutate_text
from serve_targets import grpc_messages, http_requests

from infersdk.core.files import atomic_write
from infersdk.errors import BackendUnavailableError, InferSDKError

__all__ = ["TARGETS", "Target", "entering_runtime"]

CORPUS = Path(__file__).resolve().parent / "corpus"


class Target(NamedTuple):
    """One kind of input.

    Attributes:
        case: makes an input from the generator and tries it; True if it was accepted.
        seconds: of processor time that a case may take.
        needs: a package without which the target is left out.
    """

    case: Callable[[random.Random], bool]
    seconds: float = 5.0
    needs: str = ""


#: Told when a case goes into a library that is not ours, whose crashes are its own. The worker sets it.
entering_runtime: Callable[[bool], None] = lambda inside: None  # noqa: E731


@functools.cache
def corpus(kind: str) -> dict[str, bytes]:
    """The files of a target, by name."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / kind).iterdir())}


@functools.cache
def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="infersdk-fuzz-"))


def pick(rng: random.Random, kind: str) -> tuple[str, bytes, list[bytes]]:
    """(name, content, all contents) of a file of the corpus."""
    files = corpus(kind)
    name = rng.choice(list(files))
    return name, files[name], list(files.values())


def put(name: str, data: bytes) -> Path:
    path = scratch() / name
    path.write_bytes(data)
    return path


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ---- images ----


def images(rng: random.Random) -> bool:
    """Files of all formats that are read, and of one that is not, damaged; what is read goes through the core."""
    from PIL import Image

    from infersdk.image import Geometry, PixelTransform, image_view, read_image
    from infersdk.ops import preprocess

    Image.MAX_IMAGE_PIXELS = 1 << 20  # larger ones are refused by Pillow, and take long before that
    _, data, others = pick(rng, "images")
    if rng.random() < 0.95:
        data = mutate(rng, data, others)
    with quiet():
        image = read_image(data)
    width, height = image.size
    assert width > 0
    assert height > 0
    assert image.pixels.dtype == np.uint8
    assert image.format in ("gray", "rgb", "rgba")
    view = image_view(image.pixels, image.format)  # type: ignore[arg-type]
    out = preprocess(view, Geometry.letterbox(image.size, (16, 16)), PixelTransform(dtype="float32", scale=1 / 255))
    assert out.shape == (3, 16, 16)
    assert np.isfinite(out).all()
    return True


# ---- tensor files and arrays ----


def tensor_files(rng: random.Random) -> bool:
    """As a C harness does it millions of times; here through Python's side."""
    from infersdk import Tensor

    _, data, others = pick(rng, "tensors")
    data = mutate(rng, data, others, 4096)
    tensor = Tensor.from_bytes(data)
    assert tensor.numpy().nbytes == tensor.nbytes <= len(data)
    with Tensor.load(put("t.bin", data)) as again:
        np.testing.assert_array_equal(again.numpy(), tensor.numpy())
    tensor.close()
    return True


def dlpack_capsules(rng: random.Random) -> bool:
    """Structs of DLPack with any numbers in them, over memory that is there: taken or refused, and given back once."""
    from infersdk.core import exchange
    from infersdk.core._lib import ffi

    returned = []
    nbytes = 4096
    block = ffi.new("uint8_t[]", nbytes)
    ndim = rng.choice((0, 1, 2, 3, 4, rng.randint(-3, 70)))
    numbers = (0, 1, 2, 3, 4, 8, 16, -1, 2**31, 2**62, 2**63 - 1, -(2**63), 2**32)
    dims = [rng.choice(numbers[:6]) if rng.random() < 0.9 else rng.choice(numbers) for _ in range(max(ndim, 1))]
    shape = ffi.new("int64_t[]", dims)
    dense = [int(np.prod([max(d, 1) for d in dims[i + 1 :]], dtype=object)) % 2**63 for i in range(len(dims))]
    strides = ffi.new("int64_t[]", dense if rng.random() < 0.8 else [rng.choice(numbers) for _ in dims])
    managed = ffi.new("DLManagedTensor *")
    tensor = managed.dl_tensor
    tensor.data = ffi.cast("void *", block) if rng.random() < 0.97 else ffi.NULL
    tensor.device.device_type = rng.choice((1, 1, 1, 2, 3, 0, -1, 99))
    tensor.device.device_id = rng.choice((0, 0, 0, 1, -1, 2**31 - 1))
    tensor.ndim = ndim
    tensor.dtype.code = rng.choice((0, 1, 2, 2, 3, 4, 5, 6, 255))
    tensor.dtype.bits = rng.choice((8, 16, 32, 32, 64, 0, 1, 4, 7, 12, 128, 255))
    tensor.dtype.lanes = rng.choice((1, 1, 1, 1, 0, 2, 65535))
    tensor.shape = shape if ndim else rng.choice((shape, ffi.NULL))
    tensor.strides = rng.choice((strides, ffi.NULL))
    tensor.byte_offset = rng.choice((0, 0, 0, 8, 1, 2**63, 2**64 - 1))
    release = ffi.callback("void(DLManagedTensor *)", returned.append)
    managed.deleter = release if rng.random() < 0.9 else ffi.NULL
    capsule = exchange._new_capsule(int(ffi.cast("uintptr_t", managed)), b"dltensor", None)
    refused = None
    try:
        _, taken, dtype, owner = exchange.borrow_capsule(capsule)
        assert all(d >= 0 for d in taken), f"a negative dimension was taken: {taken}"
        assert int(np.prod(taken, dtype=object)) * dtype.itemsize < 2**63, f"a size that overflows was taken: {taken}"
        assert dtype.itemsize * 8 == tensor.dtype.bits, f"{tensor.dtype.bits} bits became {dtype}"
        del owner
    except InferSDKError as error:
        refused = str(error)  # not the error: its traceback would keep the object alive
    expected = 1 if managed.deleter else 0
    assert len(returned) == expected, f"given back {len(returned)} times, not {expected}"
    assert refused is None or refused
    return refused is None


# ---- models ----


def models(rng: random.Random) -> bool:
    """ONNX files, damaged: what the package reads of them itself, what they look like, and now and then a runtime."""
    from infersdk.graph import onnx_info
    from infersdk.graph.digest import external_files, model_digest
    from infersdk.models.names import names_of_file

    _, data, others = pick(rng, "models")
    path = put("model.onnx", mutate(rng, data, others, 1 << 15))
    with quiet():
        info = onnx_info(path)
        names_of_file(info.metadata)
        assert model_digest(path) == model_digest(path)
        external_files(path)
        if rng.random() < 0.1:
            _load(path)
    json.dumps([info.producer, dict(info.metadata), [str(spec) for spec in (*info.inputs, *info.outputs)]])
    return True


def _load(path: Path) -> None:
    from infersdk import load
    from infersdk.models import wrapper_type

    entering_runtime(True)
    try:
        with contextlib.suppress(BackendUnavailableError), load(path, "onnxruntime", threads=1) as infer:
            entering_runtime(False)
            wrapper_type(infer)
    finally:
        entering_runtime(False)


def importers(rng: random.Random) -> bool:
    """PNNX graphs with their weights, and Keras files, damaged: what this package reads by itself."""
    from infersdk.core.model_source import ModelSource
    from infersdk.importers.keras.importing import write_copy
    from infersdk.importers.pnnx import PnnxGraph
    from infersdk.importers.pnnx.expressions import parse_expression

    files = corpus("importers")
    name = rng.choice([name for name in files if not name.endswith(".bin")])
    with quiet():
        if name.endswith(".h5"):
            data = files[name]
            if rng.random() < 0.9:
                at = (
                    data.find(b'{"class_name"') if rng.random() < 0.7 else -1
                )  # the configuration, which has the numbers
                data = _keras_damage(rng, data, at) if at > 0 else mutate(rng, data, limit=1 << 16)
            source = ModelSource.of(put("model.h5", data))
            entering_runtime(True)  # the HDF5 library
            try:
                write_copy(source, put("copy.h5", b""))
            finally:
                entering_runtime(False)
            return True
        stem = name.removesuffix(".param")
        text, weights = files[name], files[f"{stem}.bin"]
        if rng.random() < 0.8:
            text = mutate_text(rng, text, _PNNX_TOKENS, [files[n] for n in files if n.endswith(".param")])
        if rng.random() < 0.3:
            weights = mutate(rng, weights, limit=1 << 16)
        put("m.pnnx.bin", weights)
        graph = PnnxGraph.read(put("m.pnnx.param", text))
        for one in graph.operators:
            if "expr" in one.params:
                parse_expression(one.params["expr"], len(one.inputs))
            for weight in one.attributes.values():
                assert weight.array.shape == weight.shape
    return True


def _keras_damage(rng: random.Random, data: bytes, at: int) -> bytes:
    """Another number, or another word, in the configuration, of the same length."""
    end = data.find(b"\0", at)
    text = bytearray(data[at:end])
    for _ in range(rng.randint(1, 4)):
        digits = [i for i, byte in enumerate(text) if byte in b"0123456789"]
        if digits and rng.random() < 0.7:
            text[rng.choice(digits)] = rng.choice(b"0123456789-e")
        elif text:
            text[rng.randrange(len(text))] = rng.randrange(32, 127)
    return data[:at] + bytes(text) + data[end:]


_PNNX_TOKENS = [
    *("(1,3,8,8)f32", "(?,3)f32", "()", "(999999999,999999999)f32", "-1", "0", "2147483647", "None", "True", "same"),
    *("reflect", "nn.Conv2d", "Tensor.slice", "torch.cat", "F.interpolate", "pnnx.Expression", "expr=add(@0,@1)"),
    *("expr=[@0,None]", "@9", "$x=0", "#0=(1)f32", "@weight=(4,3,3,3)f32", " 1 1 0 1 ", "\n", "=", "(", ")", ","),
    *("99999999999999999999", "nan", "inf", "c64"),
]


# ---- texts ----

_JSON_TOKENS = ["{", "}", "[", "]", '"', ":", ",", "null", "true", "-", "1e999", "NaN", "9" * 400, "\\ud800", "\\u0000",
                '"a":', "0.5", "-1", '"schema"', "[[", "{}", "\x00", "é", "\udcff"]  # fmt: skip
_CONFIG_TOKENS = [
    *_JSON_TOKENS, "&a", "*a", "<<: *a", "&a [*a, *a]", "- ", "? ", "!!python/object:os.system", "!!binary ", "!!set ",
    "!!timestamp ", "2001-02-30", "99:99:99", "0x", "0b2", "1979-05-27T99:00:00Z", "[[models]]", "[models.detector]",
    "models = 1", "\t", "'''", '"""', "=", "path = ", "type: yolov5", "options: ", "%YAML", "---", "...", "|", ">",
    "inf", "nan", "1_000",
]  # fmt: skip


def configurations(rng: random.Random) -> bool:
    """TOML, YAML and JSON, damaged. All errors are ConfigErrors, or those of a model that is not there."""
    from infersdk.config import read
    from infersdk.models import create

    name, data, others = pick(rng, "configurations")
    path = put(f"app{Path(name).suffix}", mutate_text(rng, data, _CONFIG_TOKENS, others))
    with quiet():
        table = read(path)
        assert isinstance(table, dict)
        with contextlib.suppress(InferSDKError):  # the models that it names are not there
            for model in create(path).values():
                model.close()
    return True


def tables(rng: random.Random) -> bool:
    """Calibration tables, caches of TensorRT, annotations, labels and names of classes."""
    from infersdk.accuracy.detection import read_coco
    from infersdk.models.names import class_names, names_of_file
    from infersdk.quant import CalibrationTable

    name, data, others = pick(rng, "tables")
    data = mutate_text(rng, data, [*_JSON_TOKENS, "TRT-8601-EntropyCalibration2", "3c010204", "7f800000", ": "], others)
    path = put(name, data)
    with quiet():
        if name.endswith(".annotations.json"):
            read_coco(path, scratch())
        elif name.endswith(".names.txt"):
            class_names(path)
            names_of_file({"names": data.decode("utf-8", "replace")})
        else:
            table = CalibrationTable.load(path)
            table.save(scratch() / "again.json")
            assert CalibrationTable.load(scratch() / "again.json") == table
    return True


def reports(rng: random.Random) -> bool:
    """Reports of `infersdk bench`: read, written again, compared."""
    from infersdk.bench import read_report
    from infersdk.bench.compare import compare_reports

    _, data, others = pick(rng, "reports")
    path = put("report.json", mutate_text(rng, data, _JSON_TOKENS, others))
    with quiet():
        report = read_report(path)
        before = read_report(CORPUS / "reports" / "bench.json")
        compare_reports(before, report)
        atomic_write(scratch() / "again.json", report.json())
        report.csv()
    return True


def bundles(rng: random.Random) -> bool:
    """Bundles: damaged files, damaged manifests whose file is laid out as they say, and parts of other content."""
    import msgspec

    from infersdk.bundles import Bundle
    from infersdk.bundles.archive import pieces
    from infersdk.bundles.golden import Golden
    from infersdk.bundles.manifest import Manifest, Part
    from infersdk.bundles.packing import write_bundle

    _, data, others = pick(rng, "bundles")
    bundle, damage = Bundle(put("bundle.infer", data)), rng.random()
    parts = {name: bundle.read(name) for name in bundle.manifest.parts}
    content = data
    if damage < 0.4:
        content = mutate(rng, data, others)
    elif damage < 0.8:
        head = mutate_text(rng, bundle.manifest.encoded(), _JSON_TOKENS, [])
        with contextlib.suppress(InferSDKError):
            parts = {name: parts.get(name, b"") for name in Manifest.decoded(head).parts}
        contents = {"bundle.json": head, **parts}
        layout = [piece for _, piece in pieces({name: Part.of(one) for name, one in contents.items()})]
        content = b"".join([*(a + b for a, b in zip(layout, contents.values(), strict=False)), layout[-1]])
    else:
        parts = {name: mutate(rng, part, others) for name, part in parts.items()}
        listed = {name: Part.of(part) for name, part in parts.items()}
        path = scratch() / "bundle.infer"
        write_bundle(path, msgspec.structs.replace(bundle.manifest, parts=listed), parts)
        content = path.read_bytes()
    bundle = Bundle(put("bundle.infer", content))
    for name in bundle.manifest.parts:
        bundle.read(name)
    with contextlib.suppress(ValueError, RecursionError):
        msgspec.json.decode(bundle.read(bundle.manifest.golden), type=Golden)
    return True


TARGETS: dict[str, Target] = {
    "bundles": Target(bundles),
    "images": Target(images),
    "tensor_files": Target(tensor_files),
    "dlpack_capsules": Target(dlpack_capsules),
    "models": Target(models, seconds=20.0, needs="onnx"),
    "importers": Target(importers, needs="h5py"),
    "configurations": Target(configurations, seconds=1.0, needs="yaml"),
    "configuration_trees": Target(configuration_trees, seconds=20.0, needs="grpc"),
    "tables": Target(tables),
    "reports": Target(reports),
    "http_requests": Target(http_requests, seconds=20.0, needs="grpc"),
    "http_connections": Target(http_connections, seconds=20.0, needs="grpc"),
    "http_parameters": Target(http_parameters, seconds=20.0, needs="grpc"),
    "grpc_messages": Target(grpc_messages, seconds=20.0, needs="grpc"),
    "grpc_requests": Target(grpc_requests, seconds=20.0, needs="grpc"),
}


def run(target: str, rng: random.Random) -> bool:
    """One case; False if it was refused with an error of the package."""
    message = None
    try:
        return TARGETS[target].case(rng)
    except InferSDKError as error:
        message = str(error)
    assert message, "an error without a message"
    return False
