"""The translators of Keras layers, by kind. Importing this package registers all of them."""

from . import (
    activations,
    attention,
    convolutions,
    core,
    functions,
    merging,
    normalization,
    pooling,
    recurrent,
    resizing,
)

__all__ = [
    "activations", "attention", "convolutions", "core", "functions", "merging", "normalization", "pooling", "recurrent",
    "resizing",
]  # fmt: skip
