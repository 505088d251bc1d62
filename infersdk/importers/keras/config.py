"""The architecture of a Keras model: its layers, and which layer takes what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MODELS", "Layer", "Network", "TensorKey", "read_network"]

#: Classes that are networks of layers.
MODELS = frozenset({"Sequential", "Functional", "Model"})

#: A value: the layer, which of its calls, and which of its results.
TensorKey = tuple[str, int, int]


@dataclass(frozen=True)
class Layer:
    """A layer, or a network within a network.

    Attributes:
        kind: its class, such as `"Conv2D"`.
        name: of the layer.
        config: its settings.
        calls: what it is called with, each time: values in the form of Keras, with a `TensorKey` for each tensor.
    """

    kind: str
    name: str
    config: dict[str, Any]
    calls: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)


@dataclass(frozen=True)
class Network:
    """Layers in the order of the file, with the values that go in and come out.

    For a Sequential model `inputs` is empty where it has no InputLayer; `batch_shape` is then the first layer's.
    """

    name: str
    layers: list[Layer]
    inputs: list[TensorKey]
    outputs: list[TensorKey]


def read_network(kind: str, config: Any) -> Network:
    """The network of a configuration.

    Raises:
        ModelFormatError: it is not one that Keras writes.
    """
    rows = config.get("layers") if isinstance(config, dict) else config
    if not isinstance(rows, list):
        raise ModelFormatError(f"the configuration of a {kind} model has no list of layers")
    layers = [_layer(row) for row in rows]
    name = str(config.get("name", kind)) if isinstance(config, dict) else kind
    if kind == "Sequential":
        return _sequential(name, layers)
    for layer, row in zip(layers, rows, strict=True):
        layer.calls.extend(_calls(row.get("inbound_nodes", [])))
    assert isinstance(config, dict)
    return Network(name, layers, _keys(config.get("input_layers")), _keys(config.get("output_layers")))


def _layer(row: Any) -> Layer:
    if not isinstance(row, dict) or not isinstance(row.get("class_name"), str):
        raise ModelFormatError(f"a layer of the configuration names no class: {str(row)[:100]}")
    config = row.get("config", {})
    if not isinstance(config, (dict, list)):
        raise ModelFormatError(f"a layer of class {row['class_name']} has no settings")
    name = row.get("name") or (config.get("name") if isinstance(config, dict) else None) or row["class_name"].lower()
    return Layer(row["class_name"], str(name), config if isinstance(config, dict) else {"layers": config})


def _sequential(name: str, layers: list[Layer]) -> Network:
    """Each layer takes what the one before it gives."""
    inputs: list[TensorKey] = []
    before: TensorKey | None = None
    for layer in layers:
        if layer.kind == "InputLayer":
            inputs.append((layer.name, 0, 0))
        elif before is not None:
            layer.calls.append((before, {}))
        else:
            layer.calls.append((("", 0, 0), {}))  # the model's own input
        before = (layer.name, 0, 0)
    if before is None:
        raise ModelFormatError(f"the Sequential model {name!r} has no layers")
    return Network(name, layers, inputs, [before])


def _calls(nodes: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    if not isinstance(nodes, list):
        raise ModelFormatError("inbound_nodes is not a list")
    for node in nodes:
        if isinstance(node, dict):  # Keras 3
            arguments = _keras3(node.get("args", []))
            named = {key: _keras3(value) for key, value in dict(node.get("kwargs", {})).items()}
            yield (arguments[0] if len(arguments) == 1 else arguments), named
            continue
        if not isinstance(node, list):
            raise ModelFormatError(f"an inbound node is {str(node)[:80]}")
        # One input may be written without its list.
        entries = [node] if len(node) in (3, 4) and isinstance(node[0], str) else node
        keys = [_key(entry) for entry in entries]
        named = {}
        for entry in entries:
            if len(entry) > 3 and isinstance(entry[3], dict):
                named |= {key: _reference(value) for key, value in entry[3].items()}
        yield (keys[0] if len(keys) == 1 else keys), named


def _key(entry: Any) -> Any:
    """`[layer, call, result, ...]`; `["_CONSTANT_VALUE", -1, value]` stands for a number."""
    if isinstance(entry, list) and len(entry) >= 3 and isinstance(entry[0], str):
        if entry[0] == "_CONSTANT_VALUE":
            return entry[2]
        if isinstance(entry[1], int) and isinstance(entry[2], int):
            return (entry[0], entry[1], entry[2])
    raise ModelFormatError(f"an inbound node has the entry {str(entry)[:80]}")


def _reference(value: Any) -> Any:
    """An argument by name: a tensor as `[layer, call, result]`, or a plain value."""
    if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str):
        if all(isinstance(part, int) for part in value[1:]):
            return (value[0], value[1], value[2])
        if value[0] == "_CONSTANT_VALUE":
            return value[2]
    if isinstance(value, list):
        return [_reference(inner) for inner in value]
    return value


def _keras3(value: Any) -> Any:
    if isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
        history = dict(value.get("config", {})).get("keras_history")
        return _key(list(history) if isinstance(history, (list, tuple)) else history)
    if isinstance(value, list):
        return [_keras3(inner) for inner in value]
    return value


def _keys(rows: Any) -> list[TensorKey]:
    if isinstance(rows, dict):
        rows = list(rows.values())
    if isinstance(rows, list) and len(rows) == 3 and isinstance(rows[0], str):
        rows = [rows]
    if not isinstance(rows, list) or not rows:
        raise ModelFormatError("the configuration does not say its inputs and outputs")
    result = [_key(row) for row in rows]
    if not all(isinstance(key, tuple) for key in result):
        raise ModelFormatError(f"the configuration has the outputs {rows}")
    return result
