"""Which format a model file has, by its content, and the remedy where a backend does not read it.

One table for `load()`, `infersdk info` and every message: the name of a format, the backends that read it, the remedy
with one that no backend reads. A name's suffix decides only where the content cannot.
"""

from __future__ import annotations

import io
import mmap
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import PurePath
from typing import Any

import msgspec

__all__ = ["FORMATS", "WEIGHTS_APART", "FileFormat", "byte_fields", "format_of", "varint"]


class FileFormat(msgspec.Struct, frozen=True):
    """A kind of file.

    Attributes:
        key: its name in `Infer.formats`.
        title: its name in messages, with its article.
        suffixes: the usual ones of its files.
        remedy: the action where the requested backend does not read it; `{file}` stands for its path.
        importer: the function that converts it to ONNX, as "module:function"; empty where nothing does.
        packages: those that the importer needs.
        install: how to get these.
    """

    key: str
    title: str
    suffixes: tuple[str, ...]
    remedy: str
    importer: str = ""
    packages: tuple[str, ...] = ()
    install: str = ""

    def help_for(self, file: str) -> str:
        """The remedy, for the file of that path."""
        return self.remedy.replace("{file}", file)


_EXPORT = "export it to ONNX where it was trained: torch.onnx.export(model, example_inputs, 'model.onnx')"
_OPENVINO = "load it with backend='openvino'"
_TENSORFLOW = "infersdk.importers.tensorflow:import_tensorflow"
_CONVERT = "convert it: infersdk convert {file} -o model.onnx"
_PADDLE = "infersdk.importers.paddle:import_paddle"
_PADDLE_INSTALL = 'pip install "infersdk[paddle]" (1 GB), or specify a Python that has it (--python)'
_PADDLE_PACKAGES = ("paddle", "paddle2onnx")
_TENSORFLOW_INSTALL = 'pip install "infersdk[tensorflow]" (2 GB), or specify a Python that has it (--python)'
_TENSORFLOW_PACKAGES = ("tensorflow", "tf2onnx")
#: The CPU build of PyTorch: 0.3 GB to download in all, where the build with CUDA has 3 GB.
_CPU_BUILD = "--extra-index-url https://download.pytorch.org/whl/cpu (0.3 GB; 3 GB without this option)"
_TORCH = f'pip install "infersdk[torch]" {_CPU_BUILD}'
_KERAS = f'pip install "infersdk[keras]" {_CPU_BUILD}'
_NO_MODEL = "give the path of a model"

#: All formats that are recognised, by their keys.
FORMATS: dict[str, FileFormat] = {
    entry.key: entry
    for entry in (
        FileFormat("onnx", "an ONNX model", (".onnx",), "load it with any backend that reads ONNX: onnxruntime, say"),
        FileFormat("ort", "a model in ONNX Runtime's own format", (".ort",), "load it with backend='onnxruntime'"),
        FileFormat("openvino", "an OpenVINO IR", (".xml",), "load it with backend='openvino'"),
        FileFormat(
            "tensorrt", "a TensorRT engine", (".engine", ".plan", ".trt"), "load it with backend='tensorrt'"
        ),
        FileFormat(
            "tensorrt-rtx", "a TensorRT-RTX engine", (".engine", ".plan"), "load it with backend='tensorrt-rtx'"
        ),
        FileFormat(
            "ncnn", "an ncnn model", (".param",),
            "load it with backend='ncnn' of the package infersdk-ncnn, or take the ONNX file that it was made from",
        ),
        FileFormat(
            "pnnx", "a PNNX graph", (".pnnx.param",), _CONVERT, "infersdk.importers.pnnx:import_pnnx", ("torch",),
            _TORCH,
        ),
        FileFormat(
            "torchscript", "a TorchScript model", (".pt", ".pth", ".torchscript"), _CONVERT,
            "infersdk.importers.torch:import_script", ("torch",), _TORCH,
        ),
        FileFormat(
            "torch-export", "an exported PyTorch program", (".pt2",), _CONVERT,
            "infersdk.importers.torch:import_program",
            ("torch", "onnxscript"), _TORCH,
        ),
        FileFormat(
            "torch-module", "a PyTorch module", (), _EXPORT, "infersdk.importers.torch:import_module",
            ("torch", "onnxscript"), _TORCH,
        ),
        FileFormat(
            "torch-checkpoint", "a PyTorch checkpoint (weights and Python objects, without a graph)", (".pt", ".pth"),
            f"{_EXPORT}; for a model of Ultralytics: yolo export model={{file}} format=onnx",
            "infersdk.importers.torch:import_checkpoint",
        ),
        FileFormat(
            "safetensors", "a file of weights (safetensors), without a graph", (".safetensors",),
            "export the model that they belong to to ONNX",
        ),
        FileFormat(
            "tflite", "a TensorFlow Lite model", (".tflite",), f"{_CONVERT}, or {_OPENVINO}", _TENSORFLOW,
            _TENSORFLOW_PACKAGES, f"{_TENSORFLOW_INSTALL}, or {_OPENVINO}",
        ),
        FileFormat(
            "tensorflow-graph", "a frozen TensorFlow graph", (".pb",), f"{_CONVERT}, or {_OPENVINO}", _TENSORFLOW,
            _TENSORFLOW_PACKAGES, f"{_TENSORFLOW_INSTALL}, or {_OPENVINO}",
        ),
        FileFormat(
            "tensorflow-saved-model", "a TensorFlow SavedModel", (".pb",), f"{_CONVERT}, or {_OPENVINO}", _TENSORFLOW,
            _TENSORFLOW_PACKAGES, f"{_TENSORFLOW_INSTALL}, or {_OPENVINO}",
        ),
        FileFormat(
            "keras-h5", "a Keras model in HDF5", (".h5", ".hdf5", ".keras"), _CONVERT,
            "infersdk.importers.keras:import_h5", ("h5py",), _KERAS,
        ),
        FileFormat(
            "keras", "a Keras 3 model", (".keras",), _CONVERT, "infersdk.importers.keras:import_archive",
            ("h5py",), _KERAS,
        ),
        FileFormat("coreml", "a Core ML model", (".mlmodel",), "take the model that it was converted from"),
        FileFormat(
            "paddle", "a PaddlePaddle model", (".pdmodel",), f"{_CONVERT}, or {_OPENVINO}", _PADDLE, _PADDLE_PACKAGES,
            f"{_PADDLE_INSTALL}, or {_OPENVINO}",
        ),
        FileFormat(
            "paddle-pir", "a PaddlePaddle 3 model", (".json",), _CONVERT, _PADDLE, _PADDLE_PACKAGES, _PADDLE_INSTALL,
        ),
        FileFormat("gguf", "a language model (GGUF)", (".gguf",), "this package does not run language models"),
        FileFormat(
            "git-lfs", "a pointer of Git LFS, in place of the file itself", (),
            "fetch the file: git lfs pull",
        ),
        FileFormat("html", "a web page", (".html",), "the download gave a page instead of the file: check its address"),
        FileFormat("bundle", "a bundle", (".infer",), "give its path to infersdk.models.load()"),
        FileFormat("image", "an image", (), _NO_MODEL),
        FileFormat("tensor", "a tensor file", (), f"infersdk.Tensor.load() reads it; {_NO_MODEL}"),
        FileFormat("numpy", "a NumPy file", (".npy", ".npz"), _NO_MODEL),
        FileFormat("archive", "an archive", (".zip", ".tar", ".gz", ".7z"), "unpack it first"),
    )
}  # fmt: skip

#: The first bytes of files: the offset, the bytes, the format.
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"vtrt", "tensorrt-rtx"),
    (0, b"ftrt", "tensorrt"),
    (0, b"ptrt", "tensorrt"),
    (4, b"ORTM", "ort"),
    (4, b"TFL3", "tflite"),
    (0, b"\x89HDF\r\n\x1a\n", "keras-h5"),
    (0, b"GGUF", "gguf"),
    (0, b"\xe2\xe2\xcf\xfc", "tensor"),
    (0, b"version https://git-lfs.github.com/spec/", "git-lfs"),
    (0, b"\x93NUMPY", "numpy"),
    (0, b"\x89PNG\r\n\x1a\n", "image"),
    (0, b"\xff\xd8\xff", "image"),
    (0, b"GIF8", "image"),
    (8, b"WEBP", "image"),
    (30, b"bundle.json", "bundle"),
    (0, b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "torch-checkpoint"),  # torch.save() before PyTorch 1.6
    (0, b"\x1f\x8b", "archive"),
    (0, b"BZh", "archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "archive"),
    (257, b"ustar", "archive"),
)

#: Formats whose weights are in another file.
WEIGHTS_APART = frozenset({"openvino", "pnnx", "paddle", "paddle-pir"})


def format_of(data: bytes | mmap.mmap, name: str = "") -> FileFormat | None:
    """The format of the content of a file; None where it is not recognised.

    Args:
        data: the content. Of a file that is mapped into memory, a few kilobytes are read.
        name: the file's name, which decides where the content does not.
    """
    head = data[:4096]
    suffix = PurePath(name).suffix.lower()
    key = _by_magic(head) or _by_text(head) or _of_zip(data, head, suffix)
    key = key or _of_safetensors(head, len(data)) or _of_protobuf(data, suffix)
    if key in (None, "archive") and suffix in FORMATS["bundle"].suffixes:
        key = "bundle"  # one that was cut or changed; its reader reports that
    return FORMATS[key] if key is not None else None


def _by_magic(head: bytes) -> str | None:
    return next((key for offset, magic, key in _MAGIC if head[offset : offset + len(magic)] == magic), None)


def _by_text(head: bytes) -> str | None:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"7767517"):
        return "pnnx" if b"pnnx." in head else "ncnn"
    if re.match(rb'\{\s*"base_code"\s*:\s*\{[^{}]*"pir"', text):
        return "paddle-pir"
    lowered = text[:256].lower()
    if lowered.startswith((b"<!doctype html", b"<html")):
        return "html"
    if text.startswith(b"<") and re.search(rb"<net[\s>]", head):
        return "openvino"
    return None


#: Formats that are zip archives.
_ZIPS = ("bundle", "torchscript", "torch-export", "keras")


def _of_zip(data: bytes | mmap.mmap, head: bytes, suffix: str) -> str | None:
    """PyTorch and Keras keep models in zip archives."""
    if not head.startswith(b"PK\x03\x04"):
        return None
    import zipfile

    file: Any = io.BytesIO(data) if isinstance(data, bytes) else data
    try:
        names = zipfile.ZipFile(file).namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, OverflowError):
        # It is damaged, and the reader of the format reports that.
        return next((key for key in _ZIPS if suffix in FORMATS[key].suffixes), "archive")
    inner = {name.partition("/")[2] or name for name in names}
    if any(name.startswith("code/") for name in inner):
        return "torchscript"
    if "data.pkl" in inner:
        return "torch-checkpoint"
    if "archive_format" in inner or any(name.endswith("exported_program.json") for name in inner):
        return "torch-export"
    if "model.weights.h5" in inner:
        return "keras"
    return "numpy" if names and all(name.endswith(".npy") for name in names) else "archive"


def _of_safetensors(head: bytes, size: int) -> str | None:
    return "safetensors" if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") <= size - 8 else None


# ---- protobuf: a field is a varint of its number and type, then a varint, 8 bytes, a length and bytes, or 4 bytes ----

_VARINT, _BYTES = 0, 2
_WIDTHS = {1: 8, 5: 4}  # bytes of the types of fixed size


def _fields(data: bytes | mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message in `data[start:end]`: number, type, start, end. The last one may end behind `end`.

    Raises:
        ValueError: it is no message.
    """
    while start < end:
        tag, start = varint(data, start, end)
        kind = tag & 7
        if kind == _VARINT:
            _, stop = varint(data, start, end)
        elif kind == _BYTES:
            length, start = varint(data, start, end)
            stop = start + length
        elif kind in _WIDTHS:
            stop = start + _WIDTHS[kind]
        else:
            raise ValueError(f"there is no wire type {kind}")
        yield tag >> 3, kind, start, stop
        start = stop


def byte_fields(data: bytes | mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of bytes (texts, bytes and messages) of a message in `data[start:end]`: number, start, end.

    Raises:
        ValueError: it is no message.
    """
    for number, kind, first, last in _fields(data, start, end):
        if last > end:
            raise ValueError("a field is longer than its message")
        if kind == _BYTES:
            yield number, first, last


def varint(data: bytes | mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """A number, and where it ends.

    Raises:
        ValueError: it is cut off, or longer than 10 bytes.
    """
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number is cut off")


def _of_protobuf(data: bytes | mmap.mmap, suffix: str) -> str | None:
    """ONNX, TensorFlow and others store a protobuf message; the types of its fields tell which."""
    try:
        fields = [(number, kind) for number, kind, _, _ in islice(_fields(data, 0, len(data)), _MOST_FIELDS)]
    except ValueError:
        return None
    if not fields or not all(0 < number < 1 << 20 for number, _ in fields):
        return None
    if suffix in FORMATS["coreml"].suffixes:
        return "coreml"
    kinds = dict(fields)
    if _is_paddle(data, kinds):
        return "paddle"
    if kinds.get(7) == _BYTES and all(number in _ONNX and kind == _ONNX[number] for number, kind in fields):
        return "onnx"  # a graph, and nothing that a ModelProto does not have
    if kinds.get(1) == _VARINT and kinds.get(2) == _BYTES and set(kinds) <= {1, 2}:
        return "tensorflow-saved-model"
    if kinds.get(1) == _BYTES and set(kinds) <= {1, 2, 3, 4, 5} and suffix == ".pb":
        return "tensorflow-graph"
    return None


def _is_paddle(data: bytes | mmap.mmap, kinds: dict[int, int]) -> bool:
    """Blocks, then a version: a block begins with its number, 0, and that of its parent."""
    if kinds.get(1) != _BYTES or not set(kinds) <= {1, 4, 5}:
        return False
    _, at = varint(data, 1, len(data))
    block = data[at : at + 3]
    return block[:1] + block[2:] == b"\x08\x10"


#: The fields of an ONNX ModelProto, with their types.
_ONNX = {1: _VARINT, 2: _BYTES, 3: _BYTES, 4: _BYTES, 5: _VARINT, 6: _BYTES, 7: _BYTES, 8: _BYTES, 14: _BYTES,
         20: _BYTES, 25: _BYTES, 26: _BYTES}  # fmt: skip
#: Fields to look at: a TensorFlow graph has one for each node.
_MOST_FIELDS = 64
