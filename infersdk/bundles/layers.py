"""The intermediate values of a model for one input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..core.model_source import ModelSource
from ..graph.files import model_bytes
from ..graph.layers import LayerModel
from ..graph.passes import prepared_model
from ..loading.registry import load

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["layer_values"]


def layer_values(
    source: ModelSource, feed: Mapping[str, npt.NDArray[Any]], **place: Any
) -> Iterator[tuple[str, str, npt.NDArray[Any]]]:
    """The name of each intermediate value, the node that computes it, and its array, in topological order.

    The values are outputs of the model for this, which keeps runtimes from fusing across them. Nothing is written to a
    disk.

    Args:
        source: an ONNX model, with its passes.
        place: where it runs: arguments of `infersdk.load()`.
    """
    content = prepared_model(source, ())
    graph = LayerModel(
        source if content is None else ModelSource(None, content, name=source.name),
        {name: array.shape for name, array in feed.items()},
    )
    for values, model in graph.parts():
        with load(ModelSource(None, model_bytes(model), name=source.name), **place) as network:
            outputs = network({spec.name: feed[spec.name] for spec in network.input_specs})
        for value in values:
            yield value.name, value.node, outputs[value.name]
