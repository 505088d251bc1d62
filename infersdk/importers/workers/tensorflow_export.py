"""Converts TensorFlow models to ONNX with tf2onnx, and runs them on random inputs."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from pathlib import Path
from typing import Any

from .exchange import RefusedError, full_sizes, onnx_inputs, run_rounds, shapes_by_input

OPSET = 17
MISSING = '{name} is not installed: pip install "infersdk[tensorflow]"'
#: Operators that access files, other processes, or Python functions.
REACHING = re.compile(
    r"ReadFile|.*Reader(V2)?|.*RecordDataset.*|TextLineDataset.*|LMDB.*"
    r"|.*Summary.*|Debug.*|.*RemoteCall.*|.*Rpc.*|LoadLibrary.*|GenerateBigQuery.*|.*SqlDataset.*|.*SnapshotDataset.*|Print(V2)?"
)
#: Operators of a SavedModel for its variables.
SAVING = re.compile(r"MergeV2Checkpoints|Save(V2|Slices)?|Restore(V2|Slice)?|ShardedFilename")


def check_operators(definition: Any, saved: bool) -> None:
    """Raises RefusedError for a graph with operators that access external resources."""
    nodes = (definition.node, *(function.node_def for function in definition.library.function))
    names = {node.op for part in nodes for node in part}
    reaching = sorted(name for name in names if REACHING.fullmatch(name) or (not saved and SAVING.fullmatch(name)))
    if reaching:
        raise RefusedError(
            f"the graph has operators that access external resources: {', '.join(reaching)}", "unsupported"
        )


# ---- frozen graphs ----


def graph_ends(graph: Any, definition: Any, request: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The given inputs and outputs of a graph, or its placeholders and all results of unused nodes.

    Only the first result of a batch normalisation counts; the others are for training.
    """
    names = [node.name for node in definition.node]
    placeholders = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")
    inputs = list(request["inputs"]) or [f"{node.name}:0" for node in definition.node if node.op in placeholders]
    taken = {source.lstrip("^").partition(":")[0] for node in definition.node for source in node.input}
    outputs = list(request["outputs"]) or [
        tensor.name
        for node in definition.node
        if node.name not in taken and node.op not in ("Const", *placeholders)
        for tensor in graph.get_operation_by_name(node.name).outputs[: 1 if "BatchNorm" in node.op else None]
    ]
    inputs, outputs = ([name if ":" in name else f"{name}:0" for name in side] for side in (inputs, outputs))
    for name in (*inputs, *outputs):
        if name.rpartition(":")[0] not in names:
            raise RefusedError(f"there is no node {name.rpartition(':')[0]!r} in the graph", "config")
    if not inputs:
        raise RefusedError("the graph has no placeholders; name its inputs: --inputs NAME:0", "config")
    if not outputs:
        raise RefusedError("the graph has no outputs; name them: --outputs NAME:0", "config")
    return inputs, outputs


def convert_graph(folder: Path, request: dict[str, Any], target: Path) -> dict[str, Any]:
    import tensorflow as tf

    definition = tf.compat.v1.GraphDef()
    try:
        definition.ParseFromString(Path(request["model"]).read_bytes())
    except Exception as error:
        raise RefusedError(f"the file is not a TensorFlow graph: {error}", "format") from None
    check_operators(definition, saved=False)
    graph = tf.Graph()
    with graph.as_default():
        try:
            tf.import_graph_def(definition, name="")
        except Exception as error:
            raise RefusedError(f"TensorFlow cannot import the graph: {str(error)[:300]}", "format") from None
    inputs, outputs = graph_ends(graph, definition, request)
    tensors = [graph.get_tensor_by_name(name) for name in inputs]
    names = [name.rpartition(":")[0] for name in inputs]
    given = [{**one, "name": one["name"].partition(":")[0]} for one in request["shapes"]]
    dtypes = [tensor.dtype.as_numpy_dtype for tensor in tensors]
    sizes = full_sizes(names, [known_shape(tensor.shape) for tensor in tensors], dtypes, given)
    fixed = shapes_by_input(names, given)
    listed = ",".join(
        full + (f"[{','.join(map(str, shape))}]" if name in fixed else "")
        for full, name, shape in zip(inputs, names, sizes, strict=True)
    )
    run_tf2onnx(["--graphdef", request["model"], "--inputs", listed, "--outputs", ",".join(outputs)], target)

    def run(arrays: list[Any]) -> list[Any]:
        with tf.compat.v1.Session(graph=graph) as session:
            return list(session.run(outputs, dict(zip(inputs, arrays, strict=True))))

    run_rounds(folder, request, names, sizes, dtypes, run)
    return {
        "notes": [f"inputs {', '.join(inputs)}; outputs {', '.join(outputs)}"],
        "runtime": f"TensorFlow {tf.__version__}",
    }


def known_shape(shape: Any) -> list[int | None] | None:
    return None if shape.rank is None else shape.as_list()


# ---- SavedModels ----


def convert_saved_model(folder: Path, request: dict[str, Any], target: Path) -> dict[str, Any]:
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    path = Path(request["model"])
    saved = saved_model_pb2.SavedModel()
    try:
        saved.ParseFromString((path / "saved_model.pb").read_bytes())
    except Exception as error:
        raise RefusedError(f"the file is not a SavedModel: {error}", "format") from None
    for graph in saved.meta_graphs:
        check_operators(graph.graph_def, saved=True)
    try:
        loaded = tf.saved_model.load(str(path))
    except Exception as error:
        raise RefusedError(f"TensorFlow cannot load the SavedModel: {str(error)[:300]}", "format") from None
    if not loaded.signatures:
        raise RefusedError(
            "the SavedModel has no signature; save it with one: tf.saved_model.save(..., signatures=...)", "unsupported"
        )
    name = "serving_default" if "serving_default" in loaded.signatures else next(iter(loaded.signatures))
    signature = loaded.signatures[name]
    arguments = signature.structured_input_signature[1]
    run_tf2onnx(["--saved-model", str(path), "--signature_def", name], target)
    inputs, output_names = onnx_inputs(target)
    ordered = [next(key for key in arguments if key in (one.name, one.name.partition(":")[0])) for one in inputs]
    dtypes = [arguments[key].dtype.as_numpy_dtype for key in ordered]
    sizes = full_sizes(ordered, [known_shape(arguments[key].shape) for key in ordered], dtypes, request["shapes"])

    def run(arrays: list[Any]) -> list[Any]:
        given = {key: tf.constant(array) for key, array in zip(ordered, arrays, strict=True)}
        results = signature(**given)
        return [results[n if n in results else n.partition(":")[0]].numpy() for n in output_names]

    run_rounds(folder, request, ordered, sizes, dtypes, run)
    return {"notes": [f"signature {name}: inputs {', '.join(ordered)}"], "runtime": f"TensorFlow {tf.__version__}"}


# ---- TensorFlow Lite ----


def convert_tflite(folder: Path, request: dict[str, Any], target: Path) -> dict[str, Any]:
    import tensorflow as tf

    try:
        interpreter = tf.lite.Interpreter(model_path=request["model"], num_threads=1)
        interpreter.allocate_tensors()
    except Exception as error:
        raise RefusedError(f"TensorFlow Lite cannot load the file: {str(error)[:300]}", "format") from None
    run_tf2onnx(["--tflite", request["model"]], target)
    values, output_names = onnx_inputs(target)
    names = [one.name for one in values]
    inputs = {one["name"]: one for one in interpreter.get_input_details()}
    outputs = {one["name"]: one for one in interpreter.get_output_details()}
    ordered = [inputs[name] for name in names] if set(names) == set(inputs) else list(inputs.values())
    given = [outputs[name] for name in output_names] if set(output_names) == set(outputs) else list(outputs.values())

    def run(arrays: list[Any]) -> list[Any]:
        for one, array in zip(ordered, arrays, strict=True):
            interpreter.set_tensor(one["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(one["index"]).copy() for one in given]

    names, dtypes = [one["name"] for one in ordered], [one["dtype"] for one in ordered]
    sizes = full_sizes(names, [[int(size) for size in one["shape"]] for one in ordered], dtypes, request["shapes"])
    run_rounds(folder, request, names, sizes, dtypes, run)
    return {
        "notes": [f"inputs {', '.join(inputs)}; outputs {', '.join(outputs)}"],
        "runtime": f"TensorFlow Lite {tf.__version__}",
    }


# ---- all ----


def run_tf2onnx(arguments: list[str], target: Path) -> None:
    from tf2onnx import convert

    before = sys.argv
    sys.argv = ["tf2onnx", *arguments, "--opset", str(OPSET), "--output", str(target)]
    try:
        convert.main()
    except SystemExit as stop:
        if stop.code:
            raise RefusedError("tf2onnx cannot convert the model", "unsupported") from None
    except Exception as error:
        raise RefusedError(f"tf2onnx fails: {str(error)[:400]}", "unsupported") from None
    finally:
        sys.argv = before
    if not target.is_file():
        raise RefusedError("tf2onnx wrote no model", "unsupported")


KINDS = {"tensorflow-graph": convert_graph, "tensorflow-saved-model": convert_saved_model, "tflite": convert_tflite}


def run(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    with contextlib.suppress(AttributeError):
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
    importlib.import_module("tf2onnx")
    return KINDS[request["kind"]](folder, request, folder / "model.onnx")
