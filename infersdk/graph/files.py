"""Reading and writing ONNX files as `onnx_ir.Model`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..core.files import atomic_write, open_regular, scratch_folder
from ..core.model_source import ModelLike, ModelSource
from ..errors import (
    BackendUnavailableError,
    InferSDKError,
    ModelError,
    ModelFormatError,
    OutputError,
    UnsupportedModelError,
    exhausted,
)
from .weights import weights_size

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = [
    "EXTERNAL_KEY", "borrowed_model", "check_external_files", "external_files", "files_of", "load_proto", "model_bytes",
    "open_weights", "private_copy", "proto_bytes", "proto_graphs", "proto_of", "read_model", "require_onnx", "size_of",
    "tensor_array", "write_large", "write_model",
]  # fmt: skip

#: The maximum size of a protobuf message.
LARGEST_MESSAGE = 2**31 - 1
#: Weights with more bytes are written to a separate file: half of protobuf's limit.
_LARGE = 2**30
#: The key "location" of a tensor with external data, as protobuf serialises it.
EXTERNAL_KEY = b"\x0a\x08location"


def require_onnx(purpose: str) -> None:
    """Checks that `onnx` and `onnx_ir` are installed.

    Raises:
        BackendUnavailableError: one of them is not; the message names `purpose`.
    """
    for name in ("onnx", "onnx_ir"):
        if importlib.util.find_spec(name) is None:
            raise BackendUnavailableError(
                f'{purpose} needs {name}, which is not installed: pip install "onnx>=1.21" "onnx-ir>=1.1"'
            )


#: String fields that are not names of graph elements.
_DESCRIPTIONS = (
    "ModelProto.producer_name", "ModelProto.producer_version", "ModelProto.domain", ".doc_string",
    "StringStringEntryProto.key", "StringStringEntryProto.value",
)  # fmt: skip


def read_model(model: ModelLike) -> ir.Model:
    """Reads an ONNX model. External data is read on first access.

    Raises:
        ModelNotFoundError, ModelFormatError: the file does not exist or is not an ONNX model.
        UnsupportedModelError: the model has sparse weights.
        BackendUnavailableError: the `onnx` or `onnx_ir` package is not installed.
    """
    source = ModelSource.of(model)
    require_onnx("reading an ONNX file")
    import onnx_ir as ir

    proto, name = load_proto(source), str(source)
    if any(graph.sparse_initializer for graph in proto_graphs(proto.graph)):
        raise UnsupportedModelError(f"{name!r} has sparse weights, which the graph tools would lose; store them dense")
    try:
        result: ir.Model = ir.from_proto(proto)
        result.graph.sort()  # runtimes write nodes out of order
    except Exception as error:
        raise ModelFormatError(f"the graph of {name!r} is not valid: {_root(error)}") from None
    _replace_external(result, lambda tensor: _lazy_tensor(tensor, source.external_data, name))
    return result


@contextlib.contextmanager
def borrowed_model(model: ModelLike) -> Iterator[ir.Model]:
    """`read_model()` for a `with` statement, which frees the weights at its end.

    The nodes and values of a graph form reference cycles, which would keep the weights in memory until the next run of
    the garbage collector.
    """
    result = read_model(model)
    values, nodes = _owners(result)
    try:
        yield result
    finally:
        more = _owners(result)  # passes may have added some
        for value in (*values, *more[0]):
            value.const_value = None
        for node in (*nodes, *more[1]):
            node.attributes.clear()


def _owners(model: ir.Model) -> tuple[list[ir.Value], list[ir.Node]]:
    """The objects that may hold tensors: weights, and nodes with their attributes."""
    weights = [value for graph in model.graphs() for value in graph.initializers.values()]
    return weights, [*model.graph.all_nodes(), *(node for one in model.functions.values() for node in one.all_nodes())]


def load_proto(model: ModelLike) -> Any:
    """Reads the `onnx.ModelProto` of a model without its external data."""
    source = ModelSource.of(model)
    import onnx

    try:
        if source.path is None:
            proto = onnx.load_model_from_string(source.read())
        else:
            proto = onnx.load(str(source.path), load_external_data=False)
    except Exception as error:  # protobuf's own exceptions differ between its implementations
        raise exhausted(error, repr(str(source))) or _no_onnx(source, f", or is corrupt: {error}") from None
    if not proto.graph.output:
        raise _no_onnx(source, ": it has no graph with outputs")
    _decode_text(proto, repr(str(source)))
    return proto


def _no_onnx(source: ModelSource, reason: str) -> ModelFormatError:
    """The error of a file that is no ONNX model, with the remedy for a file of another format."""
    if source.format is None or source.is_onnx:
        return ModelFormatError(f"{str(source)!r} is not an ONNX model{reason}")
    remedy = source.format.help_for(str(source))
    return ModelFormatError(f"{str(source)!r} is {source.format.title}, not an ONNX model; {remedy}")


def _decode_text(message: Any, name: str) -> None:
    """Replaces invalid UTF-8 in descriptions and metadata, which protobuf returns as `bytes`.

    Raises:
        ModelFormatError: a name in the graph is not UTF-8. Replacing its bytes could make two names equal.
    """
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in [value] if hasattr(value, "ListFields") else value:
                _decode_text(inner, name)
        elif field.type == field.TYPE_STRING:
            for text in value if not isinstance(value, (str, bytes)) else [value]:
                if not isinstance(text, bytes):
                    continue
                if not field.full_name.endswith(_DESCRIPTIONS):
                    raise ModelFormatError(f"{name}: {field.name} is not UTF-8: {text!r}; is the file damaged?")
                setattr(message, field.name, text.decode("utf-8", "replace"))


def external_files(model: ModelLike) -> list[Path]:
    """The external data files of an ONNX model, sorted by name. Includes those of sparse weights.

    Raises:
        ModelNotFoundError, ModelFormatError: the file does not exist or is not a model, external data is outside of its
            folder, or the model is in memory and no folder was given.
    """
    source = ModelSource.of(model)
    require_onnx("reading the names of a model's files of weights")
    import onnx

    names: set[str] = set()
    for tensor in _tensors(load_proto(source).graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            names.update(entry.value for entry in tensor.external_data if entry.key == "location")
    return sorted(_weights_path(source.external_data, name, str(source)) for name in names)


def files_of(model: ModelSource) -> list[Path]:
    """A model's file and those with its weights. Raises as `external_files()`."""
    weights = external_files(model) if model.is_onnx and model.mentions(EXTERNAL_KEY) else []
    return [file for file in (model.path, *weights) if file is not None]


def size_of(model: ModelSource) -> int:
    """The size of a model's file and those with its weights, in bytes. Raises as `external_files()`."""
    return sum(file.stat().st_size for file in files_of(model) if file.is_file())  # loading reports a missing file


def _weights_path(folder: Path | None, name: str, model: str) -> Path:
    """The path of the external data file `name`."""
    if folder is None:
        raise ModelFormatError(f"the {model} keeps weights in {name!r}: give their folder with external_data=")
    path, plain = folder / name, os.path.normpath(name)
    if (
        not name
        or "\0" in name
        or Path(name).anchor  # absolute, or on Windows relative to a drive
        or Path(plain).parts[:1] == ("..",)
        or (
            ".." in Path(name).parts and os.path.realpath(path) != os.path.realpath(folder / plain)  # after a link
        )
    ):
        raise ModelFormatError(f"{model!r} keeps weights in {name!r}, which is outside of its folder")
    return path


def check_external_files(source: ModelSource) -> None:
    """Checks that the external data files of an ONNX model are regular files. A runtime would block on a pipe."""
    for path in external_files(source):
        with open_weights(path, f"{source.name}: weights"):
            pass


def open_weights(path: Path, what: str) -> BinaryIO:
    """A file of weights, which is a regular file.

    Raises:
        ModelFormatError: it cannot be opened.
    """
    try:
        return open_regular(path)
    except OSError as error:
        raise exhausted(error, what) or ModelFormatError(
            f"{what} in {str(path)!r} cannot be read: {error.strerror or error}; put the file where the model "
            "names it, in the model's folder"
        ) from None


@contextlib.contextmanager
def private_copy(path: str | os.PathLike[str]) -> Iterator[str]:
    """The path of an ONNX model for a runtime that maps external data into memory.

    A model with external data is copied, so that changes to its files do not reach the runtime. The copy is removed at
    the end of the block; mapped pages stay valid until they are unmapped. On Windows it is the file itself, since
    Windows neither replaces nor removes a file that is mapped.

    Raises:
        ModelFormatError, OutputError: a file cannot be read, or the copy cannot be written.
    """
    source = ModelSource.of(path)
    apart = source.is_onnx and source.mentions(EXTERNAL_KEY)
    if apart and sys.platform == "win32":
        check_external_files(source)
    if not apart or sys.platform == "win32":
        yield str(source)
        return
    weights = external_files(source)
    with scratch_folder() as folder:
        with source.open() as content:
            _write_copy(content, folder / source.name)
        for file in weights:
            assert source.external_data is not None, "weights without a folder are refused"
            with open_weights(file, "weights") as content:
                _write_copy(content, folder / file.relative_to(source.external_data))
        yield str(folder / source.name)


def _write_copy(content: BinaryIO, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)  # for sub/.. it is sub
        with open(target, "wb") as copy:
            shutil.copyfileobj(content, copy, 1 << 20)
    except OSError as error:
        raise OutputError(
            f"the weights of a model cannot be copied to {str(target.parent)!r}: {error.strerror or error}; set "
            "TMPDIR to a folder with enough space"
        ) from None


def proto_graphs(graph: Any) -> Iterator[Any]:
    """A `GraphProto` and its subgraphs."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.ByteSize():
                    yield from proto_graphs(inner)


def _tensors(graph: Any) -> Iterator[Any]:
    """All tensors of a graph and its subgraphs."""
    for one in proto_graphs(graph):
        yield from one.initializer
        for sparse in one.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for attribute in (attribute for node in one.node for attribute in node.attribute):
            yield from (attribute.t, *attribute.tensors)


def _replace_external(model: ir.Model, made: Callable[[ir.ExternalTensor], ir.LazyTensor]) -> None:
    """Replaces tensors with external data, which onnx_ir would map into memory."""
    import onnx_ir as ir

    weights, nodes = _owners(model)
    for value in weights:
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = made(value.const_value)
    for node in nodes:
        for key, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                node.attributes[key] = ir.AttrTensor(key, made(attribute.value))
            elif attribute.type == ir.AttributeType.TENSORS:
                tensors = [made(one) if isinstance(one, ir.ExternalTensor) else one for one in attribute.value]
                node.attributes[key] = ir.AttrTensors(key, tensors)


def _lazy_tensor(tensor: ir.ExternalTensor, folder: Path | None, model: str) -> ir.LazyTensor:
    """A tensor that is read on first access."""
    import onnx
    import onnx_ir as ir

    try:
        location, offset, nbytes = str(tensor.location), tensor.offset or 0, tensor.nbytes
    except TypeError:  # an element type without a size, such as UNDEFINED
        raise ModelFormatError(f"{model}: weight {tensor.name!r} has the element type {tensor.dtype.name}") from None
    dtype, shape, name = tensor.dtype, tensor.shape, tensor.name

    def read() -> ir.TensorProtocol:
        path, what = _weights_path(folder, location, model), f"weight {name!r}"
        with open_weights(path, what) as file:
            size = file.seek(0, 2)
            if offset < 0 or size < offset + nbytes:
                raise ModelFormatError(
                    f"{str(path)!r} has {size} bytes, and {what} ends at byte {offset + nbytes}; is it truncated?"
                )
            file.seek(offset)
            content = file.read(nbytes)
        if len(content) < nbytes:
            raise ModelFormatError(f"{str(path)!r} became shorter while it was read")
        proto = onnx.TensorProto(name=name, data_type=int(dtype), dims=shape.numpy(), raw_data=content)
        return ir.serde.TensorProtoTensor(proto)

    return ir.LazyTensor(read, dtype, shape, cache=True, name=name)


def tensor_array(tensor: Any, source: ModelSource) -> npt.NDArray[Any]:
    """The array of a `TensorProto` of a model."""
    import onnx_ir as ir

    made = ir.from_proto(tensor)
    if isinstance(made, ir.ExternalTensor):
        made = _lazy_tensor(made, source.external_data, str(source))
    array: npt.NDArray[Any] = made.numpy()
    return array


def model_bytes(model: ir.Model) -> bytes:
    """Serialises the model with all its weights to the bytes of one ONNX file.

    Raises:
        ModelFormatError: external data is missing or truncated.
        UnsupportedModelError: the result exceeds the protobuf limit of 2 GiB.
    """
    return proto_bytes(proto_of(model))


def proto_of(model: ir.Model) -> Any:
    """The `onnx.ModelProto` of a model, with all its weights.

    Raises:
        ModelFormatError: external data is missing or truncated.
    """
    import onnx_ir as ir

    try:
        return ir.to_proto(model)
    except Exception as error:
        if isinstance(cause := _root(error), InferSDKError):  # external data cannot be read
            raise cause from None
        raise


def _root(error: BaseException) -> BaseException:
    """The error at the end of the chain of an onnx_ir SerdeError."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def proto_bytes(proto: Any) -> bytes:
    """Serialises an `onnx.ModelProto`."""
    try:
        content: bytes = proto.SerializeToString()
    except Exception as error:  # protobuf's own exceptions differ between its implementations
        raise UnsupportedModelError(
            f"the model is too large for one file of {LARGEST_MESSAGE} bytes ({error}); store its weights as "
            "external data"
        ) from None
    return content


def _has_weights_in(model: Path, file: Path) -> bool:
    try:
        return any(os.path.samefile(file, one) for one in external_files(model))
    except (ModelError, OSError):  # no model is there
        return False


def write_large(model: ir.Model, path: Path) -> Path:
    """`write_model()`, with the weights of a large model in a separate file, `path` with `.data` appended."""
    return write_model(model, path, external_data=f"{path.name}.data" if weights_size(model) > _LARGE else None)


def write_model(model: ir.Model, path: str | os.PathLike[str], *, external_data: str | None = None) -> Path:
    """Writes an ONNX file atomically.

    Args:
        external_data: name of a file in the same folder for the weights; None keeps them in the model file.

    Raises:
        OutputError: the file cannot be written, or `external_data` is not a plain file name, or names a file that is
            not the weights of the model that is replaced.
        ModelFormatError, UnsupportedModelError: as `model_bytes`.
    """
    target = Path(path)
    if external_data is None:
        return atomic_write(target, model_bytes(model))
    if not external_data or Path(external_data).name != external_data or external_data == target.name:
        raise OutputError(
            f"external_data {external_data!r}: give a file name without a folder that differs from {target.name!r}"
        )
    weights = target.parent / external_data
    if os.path.lexists(weights) and not _has_weights_in(target, weights):
        raise OutputError(
            f"external_data {external_data!r}: {str(weights)!r} exists already, and {target.name!r} has no weights in "
            "it; give another name, or remove that file"
        )
    import onnx_ir as ir

    try:
        import tempfile

        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
            ir.save(model, Path(folder, target.name), external_data=external_data)
            Path(folder, external_data).replace(weights)
            Path(folder, target.name).replace(target)
    except OSError as error:
        raise OutputError(f"the model {str(target)!r} cannot be written: {error.strerror or error}") from None
    return target
