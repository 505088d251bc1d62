"""ONNX files as graphs that can be walked and changed (`onnx_ir.Model`), and back."""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._files import atomic_write
from ..errors import BackendUnavailableError, ModelFormatError, OutputError, UnsupportedModelError
from ..model_source import ModelLike, ModelSource

if TYPE_CHECKING:
    import os

    import onnx_ir as ir

__all__ = [
    "EXTERNAL_KEY", "borrowed_model", "check_weights", "external_files", "load_proto", "model_bytes", "parse_model",
    "proto_bytes", "read_model", "require_onnx", "write_model",
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
    import onnx_ir as ir

    if source.path is None and source.mentions(EXTERNAL_KEY):
        external_files(source)  # raises for those that cannot be found
    result = _from_proto(load_proto(source), str(source))
    if source.external_data is not None:
        ir.external_data.set_base_dir(result.graph, str(source.external_data))
    return result


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
    return _from_proto(proto, "the model")


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
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ModelFormatError(f"{str(source)!r} keeps weights in {name!r}, which is outside of its folder")
    if names and source.external_data is None:
        raise ModelFormatError(
            f"the {source} keeps weights in {', '.join(map(repr, sorted(names)))}: name their folder by external_data="
        )
    return [source.external_data / name for name in sorted(names) if source.external_data is not None]


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


def _from_proto(proto: Any, name: str) -> ir.Model:
    import onnx_ir as ir

    if has_sparse_weights(proto.graph):
        raise UnsupportedModelError(f"{name!r} has sparse weights, which the graph tools would lose; store them dense")
    try:
        model: ir.Model = ir.from_proto(proto)
        model.graph.sort()  # runtimes write graphs in an order of their own
        return model
    except Exception as error:  # onnx_ir chains a SerdeError with the place around the fault
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelFormatError(f"the graph of {name!r} is not valid: {cause}") from None


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
    import onnx_ir as ir

    try:
        _load_weights(model)
    except (OSError, ValueError) as error:
        raise ModelFormatError(f"the weights of the model cannot be read: {error}") from None
    return proto_bytes(ir.to_proto(model))


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


def _load_weights(model: ir.Model) -> None:
    """Copies the weights that are in other files. Arrays that look into those files stay valid."""
    import onnx_ir as ir

    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                value.const_value = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)


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

    check_weights(model)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
            ir.save(model, Path(folder, target.name), external_data=external_data)
            Path(folder, external_data).replace(target.parent / external_data)
            Path(folder, target.name).replace(target)
    except OSError as error:
        raise OutputError(f"the model {str(target)!r} cannot be written: {error.strerror or error}") from None
    return target


def check_weights(model: ir.Model) -> None:
    """Checks that each file of weights is there and long enough.

    Raises:
        ModelFormatError: one is not.
    """
    import onnx_ir as ir

    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                try:
                    size = Path(tensor.path).stat().st_size
                except OSError as error:
                    raise ModelFormatError(
                        f"weights in {str(tensor.path)!r} cannot be read: {error.strerror or error}; the file belongs "
                        "where the model names it, next to its own"
                    ) from None
                if size < (needed := (tensor.offset or 0) + tensor.nbytes):
                    raise ModelFormatError(
                        f"{str(tensor.path)!r} has {size} bytes, and weights end at byte {needed}; was it cut off?"
                    )
