"""A Keras model in an HDF5 file as an ONNX model: each layer by its translator, and what has none listed at once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ModelFormatError, UnsupportedModelError
from ...graph.builder import GraphBuilder
from ..conversion import Imported, Request, sizes_by_name
from ..missing import missing_operators
from . import layers as _layers  # registers the translators
from .config import MODELS, Layer, Network, TensorKey, read_network
from .files import KerasFile
from .reference import reference_of
from .tensors import Tensor
from .translation import LAYERS, LayerCall

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

__all__ = ["import_h5", "translate"]

assert _layers
_OPSET = 18
#: Networks within networks: deeper ones are damage.
_DEEPEST = 30
_LAMBDA = "Lambda holds Python bytecode, and no code of a file is executed; build the model with a layer in its place"

Weights = list[tuple[str, "npt.NDArray[Any]"]]


def import_h5(request: Request) -> Imported:
    """The importer of Keras 2's `.h5` files."""
    file = KerasFile(request.source)
    model, notes = translate(file)
    sizes = sizes_by_name([str(value.name) for value in model.graph.inputs], request.shapes)
    return Imported(model, reference_of(request, file, sizes), notes)


def translate(file: KerasFile) -> tuple[ir.Model, list[str]]:
    """The ONNX model of a file, and what is to be known about it.

    Raises:
        UnsupportedModelError: layers have no translation; all are listed with their numbers.
        ModelFormatError: the file is damaged.
    """
    return _Translator(file).run()


class _Translator:
    def __init__(self, file: KerasFile) -> None:
        import onnx_ir as ir

        self.file = file
        self.graph = ir.Graph([], [], nodes=[], opset_imports={"": _OPSET}, name="keras")
        self.build = GraphBuilder(self.graph)
        self.failed: Counter[str] = Counter()
        self.notes: list[str] = []

    def run(self) -> tuple[ir.Model, list[str]]:
        import onnx_ir as ir

        kind = self.file.config["class_name"]
        if kind not in MODELS:
            raise UnsupportedModelError(
                f"the model is of the class {kind!r}, whose code is not in the file; save a Sequential or "
                f"Functional model"
            )
        network = read_network(kind, self.file.config.get("config"))
        missing = Counter(_missing(network, 0))
        if missing:
            raise missing_operators("the Keras importer", missing)
        try:
            outputs = self._network(network, None, self.file.weights, 0)
        except (ModelFormatError, UnsupportedModelError, MemoryError):
            raise
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError, AssertionError) as error:
            # Numbers, shapes and types of the configuration that do not fit together.
            raise ModelFormatError(f"the Keras model is damaged: {type(error).__name__}: {error}") from error
        if self.failed:
            raise missing_operators("the Keras importer", self.failed)
        for index, output in enumerate(outputs):
            if output is not None:
                self.graph.outputs.append(self._output(output, index, network))
        return ir.Model(self.graph, ir_version=10, producer_name="infersdk", producer_version="keras"), self.notes

    # ---- inputs and outputs ----

    def _input(self, name: str, config: dict[str, Any]) -> Tensor:
        import onnx_ir as ir

        shape = config.get("batch_input_shape", config.get("batch_shape"))
        if not isinstance(shape, (list, tuple)) or any(
            size is not None and not isinstance(size, int) for size in shape
        ):
            raise UnsupportedModelError(
                f"input {name!r} has no shape in the file; build the model with an Input, or call it, before it is "
                f"saved"
            )
        if config.get("sparse") or config.get("ragged"):
            raise UnsupportedModelError(f"input {name!r} is sparse or ragged, which no tensor is")
        dtype = _dtype(config.get("dtype", "float32"))
        axes = [
            "batch" if i == 0 and size is None else f"{name}_{i}" if size is None else size
            for i, size in enumerate(shape)
        ]
        value = ir.Value(
            name=self.build.free_name(name), type=ir.TensorType(ir.DataType.from_numpy(dtype)), shape=ir.Shape(axes)
        )
        self.graph.inputs.append(value)
        return Tensor(self.build, tuple(shape), last=value, dtype=dtype)

    def _output(self, tensor: Tensor, index: int, network: Network) -> ir.Value:
        """Under the name of the layer that gives it, in a node of its own."""
        import onnx_ir as ir

        name = network.outputs[index][0] if index < len(network.outputs) else f"output{index}"
        self.build.prefix("")
        value: ir.Value = self.build("Identity", tensor.last())
        value.name = self.build.free_name(f"{name}_output")
        value.type = ir.TensorType(ir.DataType.from_numpy(tensor.dtype))
        batch = tensor.shape[:1]
        value.shape = ir.Shape(
            ["batch" if batch == (None,) and i == 0 else size for i, size in enumerate(tensor.shape)]
        )
        return value

    # ---- networks ----

    def _network(
        self, network: Network, given: list[Tensor] | None, weights: dict[str, Weights] | Weights, depth: int
    ) -> list[Tensor | None]:
        """The outputs of a network; None for what depends on a layer that failed.

        Args:
            given: what it is called with; None for the whole model, which has inputs of its own.
            weights: by layer for the whole model; for a network in it all of them.
        """
        if depth > _DEEPEST:
            raise ModelFormatError(f"networks are nested more than {_DEEPEST} deep")
        values: dict[TensorKey, Tensor | None] = {}
        names = [key[0] for key in network.inputs]
        if given is not None:
            keys = network.inputs or [("", 0, 0)]
            if len(keys) != len(given):
                raise ModelFormatError(
                    f"the network {network.name!r} has {len(keys)} inputs, and is called with {len(given)}"
                )
            values |= dict(zip(keys, given, strict=True))
        known = {layer.name: layer for layer in network.layers}
        for name in names if given is None else []:
            if name not in known:
                raise ModelFormatError(f"there is no input layer {name!r}")
            values[(name, 0, 0)] = self._input(name, known[name].config)
        first = _first_calls(network)
        waiting = [
            (layer, number)
            for layer in network.layers
            if layer.kind != "InputLayer"
            for number in range(len(layer.calls))
        ]
        while waiting:
            later = []
            for layer, number in waiting:
                arguments, named = layer.calls[number]
                wanted = _tensor_keys((arguments, named))
                if given is None and ("", 0, 0) in wanted and ("", 0, 0) not in values:
                    values[("", 0, 0)] = self._input(_input_name(layer), _first_config(layer))
                if any(key not in values for key in wanted):
                    later.append((layer, number))
                    continue
                call = number + first.get(layer.name, 0)
                for index, result in enumerate(self._call(layer, number, values, weights, depth)):
                    values[(layer.name, call, index)] = result
            if len(later) == len(waiting):
                names = sorted({layer.name for layer, _ in later})
                raise ModelFormatError(f"the layers {', '.join(names[:5])} take values that no layer gives")
            waiting = later
        absent = [key for key in network.outputs if key not in values]
        if absent:
            raise ModelFormatError(
                f"the output {absent[0][0]!r} of the network {network.name!r} is not given by a layer"
            )
        return [values[key] for key in network.outputs]

    def _call(
        self, layer: Layer, number: int, values: dict[TensorKey, Tensor | None], weights: Any, depth: int
    ) -> list[Tensor | None]:
        arguments, named = layer.calls[number]
        inputs = [values[key] for key in _tensor_keys(arguments)]
        ready = {key: _filled(value, values) for key, value in named.items()}
        if any(value is None for value in inputs) or any(_is_failed(value, values) for value in named.values()):
            return [None] * 64
        tensors = [value for value in inputs if value is not None]
        own = _weights_of(layer.name, weights)
        if layer.kind in MODELS:
            return self._network(read_network(layer.kind, layer.config), tensors, own, depth + 1)
        if layer.kind == "TFOpLambda":  # whose first argument may be a number, or a list of tensors
            ready["_arguments"] = [_filled(arguments, values)]
        if layer.kind in ("LSTM", "GRU", "SimpleRNN", "Bidirectional") and "initial_state" in ready:
            state = ready.pop("initial_state")
            tensors.extend(state if isinstance(state, list) else [state])
        self.build.prefix(f"{layer.name}/")
        config = {**layer.config, "_keras_version": self.file.version}
        called = LayerCall(Layer(layer.kind, layer.name, config), self.build, tensors, own, ready)
        try:
            made = LAYERS[layer.kind](called)
        except UnsupportedModelError as error:
            self.failed[str(error)] += 1
            return [None] * 64
        results: list[Tensor | None] = list(made) if isinstance(made, list) else [made]
        for result in results:
            if result is not None and tensors and any(one.masked for one in tensors) and layer.kind not in _MASK_ENDS:
                result.masked = True
        return results


#: Layers behind which there is no mask.
_MASK_ENDS = {"Flatten", "GlobalMaxPooling1D", "Lambda"}


def _missing(network: Network, depth: int) -> list[str]:
    """The classes without a translator, those of inner networks and wrappers as well."""
    if depth > _DEEPEST:
        raise ModelFormatError(f"networks are nested more than {_DEEPEST} deep")
    result = []
    for layer in network.layers:
        if layer.kind in MODELS:
            result.extend(_missing(read_network(layer.kind, layer.config), depth + 1))
        elif layer.kind == "Lambda":
            result.append(_LAMBDA)
        elif layer.kind not in LAYERS and layer.kind != "InputLayer":
            result.append(layer.kind)
        inner = layer.config.get("layer") if isinstance(layer.config, dict) else None
        if isinstance(inner, dict) and inner.get("class_name") == "Lambda":
            result.append(_LAMBDA)
    return result


def _weights_of(name: str, weights: dict[str, Weights] | Weights) -> Weights:
    """Those of a layer: its group of the file, or in a network those whose path has its name."""
    if isinstance(weights, dict):
        return weights.get(name, [])
    return [(path, array) for path, array in weights if name in path.split("/")[:-1]]


def _first_calls(network: Network) -> dict[str, int]:
    """The number of the first call of each layer: a network within a network has been called once when it was made."""
    last: dict[str, int] = {}
    for key in [*network.outputs, *_tensor_keys([layer.calls for layer in network.layers])]:
        last[key[0]] = max(last.get(key[0], 0), key[1])
    return {
        layer.name: max(last.get(layer.name, 0) + 1 - len(layer.calls), 0) for layer in network.layers if layer.calls
    }


def _tensor_keys(value: Any) -> list[TensorKey]:
    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[0], str):
        return [value]
    if isinstance(value, dict):
        return [key for inner in value.values() for key in _tensor_keys(inner)]
    return [key for inner in value for key in _tensor_keys(inner)] if isinstance(value, (list, tuple)) else []


def _filled(value: Any, values: dict[TensorKey, Tensor | None]) -> Any:
    """An argument with tensors in the place of their keys."""
    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[0], str):
        return values[value]
    return [_filled(inner, values) for inner in value] if isinstance(value, list) else value


def _is_failed(value: Any, values: dict[TensorKey, Tensor | None]) -> bool:
    return any(values[key] is None for key in _tensor_keys(value))


def _first_config(layer: Layer) -> dict[str, Any]:
    """The settings of the first layer of a Sequential model, which have the shape of its input."""
    if layer.kind in MODELS:
        inner = read_network(layer.kind, layer.config)
        first = next(
            (one for one in inner.layers if not inner.inputs or one.name == inner.inputs[0][0]), inner.layers[0]
        )
        return _first_config(first)
    return layer.config


def _input_name(layer: Layer) -> str:
    return f"{layer.name}_input"


def _dtype(given: Any) -> np.dtype[Any]:
    if isinstance(given, dict):  # Keras 3's policy, and mixed precision
        given = dict(given.get("config", {})).get("name", "float32")
    try:
        dtype = np.dtype(str(given))
    except TypeError:
        raise UnsupportedModelError(f"an input of type {given!r}") from None
    if dtype.kind not in "fiub":
        raise UnsupportedModelError(f"an input of type {given!r}")
    return dtype
