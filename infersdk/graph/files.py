"""ONNX files as graphs that can be walked and changed (`onnx_ir.Model`), and back."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .._files import atomic_write, open_regular, scratch_folder
from ..errors import BackendUnavailableError, InferSDKError, ModelFormatError, OutputError, UnsupportedModelError
from ..model_source import ModelLike, ModelSource

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = [
    "EXTERNAL_KEY", "borrowed_model", "check_external_files", "external_files", "load_proto", "model_bytes",
    "parse_model", "private_copy", "proto_bytes", "proto_of", "read_model", "require_onnx", "tensor_array",
    "write_model",
]  # fmt: skip

#: What protobuf puts into one message.
LARGEST_MESSAGE = 2**31 - 1
#: A tensor in another file has the name of that file under the key "location": this is how protobuf writes that key.
EXTERNAL_KEY = b"\x0a\x08location"


def require_onnx(purpose: str) -> None:
    """Checks that the packages that read ONNX files are installed.

    Raises:
        BackendUnavailableError: `purpose` needs a package that is not installed.
    """
    for name in ("onnx", "onnx_ir"):
        if importlib.util.find_spec(name) is None:
            raise BackendUnavailableError(
                f'{purpose} needs {name}, which is not installed: pip install "onnx>=1.17" "onnx-ir>=1.1"'
            )


#: Fields of text that name nothing in the graph.
_DESCRIPTIONS = frozenset({
    "onnx.ModelProto.producer_name", "onnx.ModelProto.producer_version", "onnx.ModelProto.domain",
    "onnx.ModelProto.doc_string", "onnx.GraphProto.doc_string", "onnx.NodeProto.doc_string",
    "onnx.AttributeProto.doc_string", "onnx.TensorProto.doc_string", "onnx.ValueInfoProto.doc_string",
    "onnx.FunctionProto.doc_string", "onnx.StringStringEntryProto.key", "onnx.StringStringEntryProto.value",
})  # fmt: skip


def read_model(model: ModelLike) -> ir.Model:
    """An ONNX model. Weights in other files are read when they are used.

    Raises:
        ModelNotFoundError, ModelFormatError: there is no such file, or it is not an ONNX model.
        UnsupportedModelError: it has weights in a form that would be lost.
        BackendUnavailableError: the `onnx` or `onnx_ir` package is not installed.
    """
    source = ModelSource.of(model)
    require_onnx("reading an ONNX file")
    if source.path is None and source.mentions(EXTERNAL_KEY):
        external_files(source)  # raises for those that cannot be found
    return _from_proto(load_proto(source), str(source), source.external_data)


@contextlib.contextmanager
def borrowed_model(model: ModelLike) -> Iterator[ir.Model]:
    """`read_model()` for a `with` statement, at the end of which its weights are freed.

    The nodes and values of a graph refer to one another. Without this the weights would stay, with all of the file's
    bytes, until the garbage collector runs, which may be many models later.
    """
    result = read_model(model)
    values, nodes = _owners(result)
    try:
        yield result
    finally:
        more = _owners(result)  # those that passes have made; others are no longer in the graph
        for value in (*values, *more[0]):
            value.const_value = None
        for node in (*nodes, *more[1]):
            node.attributes.clear()


def _owners(model: ir.Model) -> tuple[list[ir.Value], list[ir.Node]]:
    """What may hold tensors: the weights, and the nodes, whose attributes may be tensors."""
    weights = [value for graph in model.graphs() for value in graph.initializers.values()]
    return weights, [*model.graph.all_nodes(), *(node for one in model.functions.values() for node in one.all_nodes())]


def parse_model(content: bytes) -> ir.Model:
    """The model in the bytes of an ONNX file. Weights in other files stay out of reach.

    Raises:
        ModelFormatError, UnsupportedModelError, BackendUnavailableError: as `read_model`.
    """
    require_onnx("reading a graph")
    import onnx

    try:
        proto = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's own exceptions differ between its implementations
        raise ModelFormatError(f"these {len(content)} bytes are not an ONNX model, or are corrupt: {error}") from None
    _decode_text(proto, "the model")
    return _from_proto(proto, "the model", None)


def load_proto(model: ModelLike) -> Any:
    """The `onnx.ModelProto` of a model, without weights that are in other files."""
    source = ModelSource.of(model)
    import onnx

    try:
        if source.path is None:
            proto = onnx.load_model_from_string(source.read())
        else:
            proto = onnx.load(str(source.path), load_external_data=False)
    except Exception as error:  # protobuf's own exceptions differ between its implementations
        raise ModelFormatError(f"{str(source)!r} is not an ONNX model, or is corrupt: {error}") from None
    if not proto.graph.output:
        raise ModelFormatError(f"{str(source)!r} is not an ONNX model: it has no graph with outputs")
    _decode_text(proto, repr(str(source)))
    return proto


def _decode_text(message: Any, name: str) -> None:
    """Replaces bytes of descriptions and metadata that are not UTF-8, which protobuf returns as `bytes`.

    Raises:
        ModelFormatError: a name in the graph is not UTF-8. Replacing its bytes could make two names one.
    """
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in [value] if hasattr(value, "ListFields") else value:
                _decode_text(inner, name)
        elif field.type == field.TYPE_STRING:
            for text in value if not isinstance(value, (str, bytes)) else [value]:
                if not isinstance(text, bytes):
                    continue
                if field.full_name not in _DESCRIPTIONS:
                    raise ModelFormatError(f"{name}: {field.name} is not UTF-8: {text!r}; is the file damaged?")
                setattr(message, field.name, text.decode("utf-8", "replace"))


def external_files(model: ModelLike) -> list[Path]:
    """The files that hold weights of an ONNX model, by name.

    They are read from the model itself, not from its graph: a graph would leave out weights that are sparse.

    Raises:
        ModelNotFoundError, ModelFormatError: there is no such file, it is not a model, it keeps weights outside of its
            folder, or it is in memory and no folder was named.
    """
    source = ModelSource.of(model)
    require_onnx("reading the names of a model's files of weights")
    import onnx

    names: set[str] = set()
    for tensor in _tensors(load_proto(source).graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            names.update(entry.value for entry in tensor.external_data if entry.key == "location")
    return sorted(_weights_path(source.external_data, name, str(source)) for name in names)


def _weights_path(folder: Path | None, name: str, model: str) -> Path:
    """The file of weights that a model calls `name`. A symbolic link, or a file with several names, may be one."""
    if folder is None:
        raise ModelFormatError(f"the {model} keeps weights in {name!r}: name their folder by external_data=")
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise ModelFormatError(f"{model!r} keeps weights in {name!r}, which is outside of its folder")
    return folder / name


def check_external_files(source: ModelSource) -> None:
    """Checks that the files of weights of an ONNX model are regular files: a runtime would wait for a pipe.

    Raises:
        ModelFormatError: one cannot be read.
    """
    for path in external_files(source):
        with _open_weights(path, f"{source.name}: weights"):
            pass


def _open_weights(path: Path, what: str) -> BinaryIO:
    try:
        return open_regular(path)
    except OSError as error:
        raise ModelFormatError(
            f"{what} in {str(path)!r} cannot be read: {error.strerror or error}; the file belongs where the model "
            "names it, next to its own"
        ) from None


@contextlib.contextmanager
def private_copy(path: str | os.PathLike[str]) -> Iterator[str]:
    """The path of an ONNX model for a runtime that maps files of weights into memory.

    A model with such files is copied, and the copy is removed at the end of the block; what is mapped stays until it is
    unmapped. So a change of the model's own files reaches no runtime that has loaded them.

    Raises:
        ModelFormatError, OutputError: a file cannot be read, or the copy cannot be written.
    """
    source = ModelSource.of(path)
    if not source.is_onnx or not source.mentions(EXTERNAL_KEY):
        yield str(source)
        return
    weights = external_files(source)
    with scratch_folder() as folder:
        copied = folder / source.name
        with source.open() as content:
            _write_copy(content, copied)
        for file in weights:
            with _open_weights(file, "weights") as content:
                _write_copy(content, folder / os.path.relpath(file, source.external_data))
        yield str(copied)


def _write_copy(content: BinaryIO, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "xb") as copy:
            shutil.copyfileobj(content, copy, 1 << 20)
    except OSError as error:
        raise OutputError(
            f"the weights of a model cannot be copied to {str(target.parent)!r}: {error.strerror or error}; name a "
            "folder with enough space by TMPDIR"
        ) from None


def _tensors(graph: Any) -> Iterator[Any]:
    """All tensors of a graph: weights, constants, and those of the graphs within it."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            for inner in (attribute.g, *attribute.graphs):
                if inner.ByteSize():
                    yield from _tensors(inner)


def _from_proto(proto: Any, name: str, folder: Path | None) -> ir.Model:
    """The graph; `folder` has the weights that are in other files."""
    import onnx_ir as ir

    if has_sparse_weights(proto.graph):
        raise UnsupportedModelError(f"{name!r} has sparse weights, which the graph tools would lose; store them dense")
    try:
        model: ir.Model = ir.from_proto(proto)
        model.graph.sort()  # runtimes write graphs in an order of their own
    except Exception as error:  # onnx_ir chains a SerdeError with the place around the fault
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelFormatError(f"the graph of {name!r} is not valid: {cause}") from None
    _replace_external(model, lambda tensor: _lazy_tensor(tensor, folder, name))
    return model


def _replace_external(model: ir.Model, made: Callable[[ir.ExternalTensor], ir.LazyTensor]) -> None:
    """Replaces the tensors in other files, which onnx_ir maps into memory and reads only by rules of its own."""
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
    """A tensor that is read when it is used, and kept then."""
    import onnx
    import onnx_ir as ir

    try:
        location, offset, nbytes = str(tensor.location), tensor.offset or 0, tensor.nbytes
    except TypeError:  # a type without a size, such as UNDEFINED
        raise ModelFormatError(f"{model}: weight {tensor.name!r} has the element type {tensor.dtype.name}") from None
    dtype, shape, name = tensor.dtype, tensor.shape, tensor.name

    def read() -> ir.TensorProtocol:
        content = _read_weights(_weights_path(folder, location, model), offset, nbytes, f"weight {name!r}")
        proto = onnx.TensorProto(name=name, data_type=int(dtype), dims=shape.numpy(), raw_data=content)
        return ir.serde.TensorProtoTensor(proto)

    return ir.LazyTensor(read, dtype, shape, cache=True, name=name)


def _read_weights(path: Path, offset: int, nbytes: int, what: str) -> bytes:
    """A part of a file of weights.

    Raises:
        ModelFormatError: the file cannot be read, or is too short.
    """
    with _open_weights(path, what) as file:
        size = file.seek(0, 2)
        if offset < 0 or size < offset + nbytes:
            raise ModelFormatError(
                f"{str(path)!r} has {size} bytes, and {what} ends at byte {offset + nbytes}; was it cut off?"
            )
        file.seek(offset)
        content = file.read(nbytes)
    if len(content) < nbytes:
        raise ModelFormatError(f"{str(path)!r} became shorter while it was read")
    return content


def tensor_array(tensor: Any, source: ModelSource) -> npt.NDArray[Any]:
    """The values of a `TensorProto` of a model.

    Raises:
        ModelFormatError: they are in another file, which cannot be read.
    """
    import onnx_ir as ir

    made = ir.from_proto(tensor)
    if isinstance(made, ir.ExternalTensor):
        made = _lazy_tensor(made, source.external_data, str(source))
    array: npt.NDArray[Any] = made.numpy()
    return array


def has_sparse_weights(graph: Any) -> bool:
    """Whether a `GraphProto`, or a graph within it, has sparse initializers."""
    inner = (g for node in graph.node for attribute in node.attribute for g in (attribute.g, *attribute.graphs))
    return bool(graph.sparse_initializer) or any(has_sparse_weights(g) for g in inner if g.ByteSize())


def model_bytes(model: ir.Model) -> bytes:
    """The model as the bytes of one ONNX file, with all its weights.

    Raises:
        ModelFormatError: a file of weights is missing or too short.
        UnsupportedModelError: it is larger than the 2 GiB that one file holds.
    """
    return proto_bytes(proto_of(model))


def proto_of(model: ir.Model) -> Any:
    """The `onnx.ModelProto` of a model, with all its weights.

    Raises:
        ModelFormatError: a file of weights is missing or too short.
    """
    import onnx_ir as ir

    try:
        return ir.to_proto(model)
    except Exception as error:
        if (unread := _typed_cause(error)) is not None:
            raise unread from None
        raise


def proto_bytes(proto: Any) -> bytes:
    """An `onnx.ModelProto` as the bytes of one ONNX file.

    Raises:
        UnsupportedModelError: it is larger than the 2 GiB that one file holds.
    """
    try:
        content: bytes = proto.SerializeToString()
    except Exception as error:  # protobuf's own exceptions differ between its implementations
        raise UnsupportedModelError(
            f"the model is too large for one file of {LARGEST_MESSAGE} bytes ({error}); keep its weights in a file of "
            "their own"
        ) from None
    return content


def _typed_cause(error: BaseException | None) -> InferSDKError | None:
    """The error of reading weights that onnx_ir's own error was raised from."""
    while error is not None and not isinstance(error, InferSDKError):
        error = error.__cause__
    return error


def write_model(model: ir.Model, path: str | os.PathLike[str], *, external_data: str | None = None) -> Path:
    """Writes an ONNX file in one step: a file of that name is complete, or is what it was before.

    Args:
        external_data: the name of a file in the same folder for the weights; None keeps them in the model's file.

    Raises:
        OutputError: the file cannot be written; `external_data` is not a plain file name.
        ModelFormatError, UnsupportedModelError: as `model_bytes`.
    """
    target = Path(path)
    if external_data is None:
        return atomic_write(target, model_bytes(model))
    if Path(external_data).name != external_data or external_data == target.name:
        raise OutputError(
            f"external_data {external_data!r}: give the name of another file in the folder of {target.name!r}, without "
            "a folder"
        )
    import onnx_ir as ir

    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
            ir.save(model, Path(folder, target.name), external_data=external_data)
            Path(folder, external_data).replace(target.parent / external_data)
            Path(folder, target.name).replace(target)
    except OSError as error:
        raise OutputError(f"the model {str(target)!r} cannot be written: {error.strerror or error}") from None
    return target
