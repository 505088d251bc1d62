"""Converts Keras HDF5 files and archives to ONNX, and runs them on random inputs.

Files of Keras 2 are converted by `tf_keras` with tf2onnx or, if it is not installed or fails, by Keras 3. Files of
Keras 3 are converted by Keras 3 on PyTorch with PyTorch's exporters. The notes name the framework and the reason.
"""

from __future__ import annotations

import importlib.util
import json
import os
import warnings
from typing import TYPE_CHECKING, Any

from .exchange import RefusedError, first_line, full_sizes, leaves, onnx_inputs, run_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

#: The packages of each framework.
PACKAGES = {"tf_keras": ("tf_keras", "tensorflow", "tf2onnx"), "keras": ("keras", "torch", "onnxscript")}
#: The extra of each framework.
EXTRAS = {"tf_keras": '"infersdk[tf-keras]"', "keras": '"infersdk[keras]"'}
TF_OPSET = 17
MISSING = "{name} is not installed, which Keras needs: pip install {name}"


# ---- both frameworks ----


def output_names(names: Sequence[str]) -> list[str]:
    """A distinct name for each output, after its layer."""
    made: list[str] = []
    for name in names:
        plain = f"{name}_output"
        count = sum(other == plain or other.startswith(f"{plain}_") for other in made)
        made.append(f"{plain}_{count}" if count else plain)
    return made


def least_rows(model: Any) -> int | None:
    """The rows of the smallest Embedding, whose inputs must be smaller integers; None without an Embedding."""
    return min(
        (layer.input_dim for layer in model._flatten_layers() if type(layer).__name__ == "Embedding"), default=None
    )


def describe_ends(path: Path, inputs: int, names: Sequence[str], shapes: Sequence[Sequence[int | None]]) -> None:
    """Sets the names and shapes of the outputs of an ONNX file, and the name `batch` for a free batch.

    Raises an error if the file is not valid ONNX or has another number of inputs.
    """
    import onnx

    model = onnx.load(str(path))
    graph = model.graph
    for value, name, shape in zip(graph.output, names, shapes, strict=True):
        if value.name != name:
            graph.node.append(onnx.helper.make_node("Identity", [value.name], [name], name=name))
        kind = value.type.tensor_type.elem_type
        free = [None if size is None else int(size) for size in shape]
        value.CopyFrom(onnx.helper.make_tensor_value_info(name, kind, free))
    for value in (*graph.input, *graph.output):
        sizes = value.type.tensor_type.shape.dim
        if sizes and not sizes[0].HasField("dim_value"):
            sizes[0].dim_param = "batch"
    onnx.save(model, str(path))
    onnx.checker.check_model(str(path), full_check=True)
    taken = [one.name for one in onnx_inputs(path)[0]]
    if len(taken) != inputs:
        raise ValueError(f"the ONNX model has the inputs {', '.join(taken)}, and the source has {inputs} inputs")


# ---- tf_keras and tf2onnx ----


def convert_tf_keras(folder: Path, request: dict[str, Any], target: Path) -> dict[str, Any]:
    import tensorflow as tf
    import tf2onnx
    import tf_keras

    tf.config.threading.set_intra_op_parallelism_threads(1)
    model = tf_keras.models.load_model(str(folder / request["model"]), compile=False)
    names = [one.name.partition(":")[0] for one in model.inputs]
    dtypes = [one.dtype.as_numpy_dtype for one in model.inputs]
    sizes = full_sizes(names, [one.shape.as_list() for one in model.inputs], dtypes, request["shapes"])

    def call(*arrays: Any) -> list[Any]:
        return leaves(model(list(arrays) if len(arrays) > 1 else arrays[0], training=False))

    def run(arrays: list[Any]) -> list[Any]:
        return [leaf.numpy() for leaf in call(*arrays)]

    run_rounds(folder, request, names, sizes, dtypes, run, least_rows(model))
    signature = [tf.TensorSpec(one.shape, one.dtype, name=name) for one, name in zip(model.inputs, names, strict=True)]
    tf2onnx.convert.from_function(tf.function(call), input_signature=signature, opset=TF_OPSET, output_path=str(target))
    shapes = [one.shape.as_list() for one in model.outputs]
    describe_ends(target, len(names), output_names(model.output_names), shapes)
    return {
        "runtime": f"tf_keras {tf_keras.__version__}",
        "notes": [f"by tf_keras {tf_keras.__version__} and tf2onnx {tf2onnx.__version__}"],
    }


# ---- Keras 3 on PyTorch ----


#: Settings that Keras 3 does not have, with their neutral values.
_NEUTRAL = {"time_major": False, "groups": 1, "score_mode": "dot"}
#: Training settings that some layers of Keras 3 do not accept, as suffixes of names.
_TRAINING = ("trainable", "noise_shape", "_initializer", "_regularizer", "_constraint")
#: The name of Keras 2's hard_sigmoid. That of Keras 3 is relu6(x + 3) / 6.
_HARD_SIGMOID = "hard_sigmoid_of_keras_2"


def for_keras_3(value: Any, within: str = "") -> Any:
    """Converts a configuration of Keras 2 for Keras 3."""
    if isinstance(value, list):
        return [for_keras_3(inner) for inner in value]
    if value == "hard_sigmoid" and within.endswith("activation"):
        return {
            "class_name": "function",
            "module": "builtins",
            "config": _HARD_SIGMOID,
            "registered_name": _HARD_SIGMOID,
        }
    if value == "bicubic" and within == "interpolation":
        raise RefusedError("bicubic interpolation of Keras 3 on PyTorch differs from that of Keras 2", "unsupported")
    if not isinstance(value, dict):
        return value
    kept = {
        key: for_keras_3(inner, key)
        for key, inner in value.items()
        if not key.endswith(_TRAINING) and not (key in _NEUTRAL and inner == _NEUTRAL[key])
    }
    if within in ("layer", "backward_layer", "cell"):
        return {"module": "keras.layers", "registered_name": None} | kept
    return kept


def convert_keras(folder: Path, request: dict[str, Any], target: Path) -> dict[str, Any]:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import torch

    from .torch_export import export_dynamo, export_first, export_traced, run_module

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    path = folder / request["model"]
    if is_keras_2(request["version"]):
        import h5py

        with h5py.File(path, "r+") as file:
            file.attrs["model_config"] = json.dumps(for_keras_3(json.loads(file.attrs["model_config"])))
    functions = {_HARD_SIGMOID: lambda x: keras.ops.clip(0.2 * x + 0.5, 0, 1)}
    model = keras.models.load_model(str(path), compile=False, safe_mode=True, custom_objects=functions)
    names = [one.name for one in model.inputs]
    dtypes = [one.dtype for one in model.inputs]
    sizes = full_sizes(names, [one.shape for one in model.inputs], dtypes, request["shapes"], 1)

    structure = getattr(model, "_inputs_struct", model.inputs[0])  # a Sequential model has one input

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> tuple[Any, ...]:
            return tuple(leaves(self.model(keras.tree.pack_sequence_as(structure, inputs), training=False)))

    module, wanted = Module().eval(), list(zip(sizes, dtypes, strict=True))
    example, results = run_module(folder, request, module, names, wanted, least_rows(model))
    last = [model.layers[-1].name]  # a Sequential model has one output
    outputs = output_names(last if isinstance(model, keras.Sequential) else model.output_names)

    def export(exporter: Callable[..., Any]) -> None:
        exporter(module, example, names, str(target), outputs)
        describe_ends(target, len(names), outputs, [result.shape for result in results])

    notes = [
        f"by Keras {keras.__version__} on PyTorch {torch.__version__}",
        *export_first(
            ("the TorchScript exporter", lambda: export(export_traced)),
            ("the dynamo exporter", lambda: export(export_dynamo)),
        ),
    ]
    notes += [
        f"the sizes of input {name} are fixed to {list(size)}"
        for name, size, one in zip(names, sizes, model.inputs, strict=True)
        if None in one.shape[1:]
    ]
    recurrent = {type(layer).__name__ for layer in model._flatten_layers()} & {"LSTM", "GRU", "SimpleRNN", "RNN"}
    if recurrent:
        other = "; tf_keras with tf2onnx writes an operator or a loop" if is_keras_2(request["version"]) else ""
        notes.append(f"{', '.join(sorted(recurrent))}: each step is a copy of the cell{other}")
    return {"runtime": f"Keras {keras.__version__} on PyTorch", "notes": notes}


# ---- the process ----


CONVERTERS = {"tf_keras": convert_tf_keras, "keras": convert_keras}


def is_keras_2(version: str) -> bool:
    return not version.startswith("3.")


def run(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    order = ["tf_keras", "keras"] if is_keras_2(request["version"]) else ["keras"]
    absent = {key: [name for name in PACKAGES[key] if importlib.util.find_spec(name) is None] for key in order}
    installed = [key for key in order if not absent[key]]
    if not installed:
        missing = ", or ".join(" and ".join(names) for names in absent.values())
        extras = " or ".join(EXTRAS[key] for key in order)
        raise RefusedError(
            f"converting this Keras file needs {missing}, which is not installed: pip install {extras}, or specify a "
            "Python that has it (--python)",
            "missing",
        )
    failed: dict[str, str] = {}
    for key in installed:
        try:
            answer = CONVERTERS[key](folder, request, folder / "model.onnx")
        except RefusedError as error:
            if error.kind == "config":
                raise
            failed[key] = error.message
        except Exception as error:
            failed[key] = f"{type(error).__name__}: {first_line(error)}"
        else:
            answer["notes"] += [f"{other} fails: {reason}" for other, reason in failed.items()]
            return answer
    reasons = "; ".join(f"{key} fails: {reason}" for key, reason in failed.items())
    others = [key for key in order if key not in installed]
    hint = f"; {' and '.join(PACKAGES[others[0]])} may convert it" if others else ""
    raise RefusedError(f"{reasons}{hint}", "unsupported")
