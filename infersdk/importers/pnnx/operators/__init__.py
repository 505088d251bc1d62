"""The translators of PNNX operators, by kind. Importing this package registers all of them."""

from . import (
    activations,
    attention,
    convolutions,
    elementwise,
    indexing,
    norms,
    pooling,
    recurrent,
    reductions,
    resizing,
    shapes,
    unraised,
)

__all__ = [
    "activations",
    "attention",
    "convolutions",
    "elementwise",
    "indexing",
    "norms",
    "pooling",
    "recurrent",
    "reductions",
    "resizing",
    "shapes",
    "unraised",
]
