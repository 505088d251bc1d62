"""A small network for the tests of layers: what runtimes fuse, what they leave, and what they fold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx_models import node, save, value


def small_network(path: Path, *, named: bool = True) -> Path:
    """x [n,3,16,16] -> two convolutions with activations, joined, pooled -> y [n,16,8,8].

    The target of the one Reshape is computed from constants, and an Identity does nothing.
    """
    rng = np.random.default_rng(3)
    weights = {
        "w1": rng.normal(size=(8, 3, 3, 3)).astype("float32"),
        "b1": rng.normal(size=8).astype("float32"),
        "w2": rng.normal(size=(8, 8, 1, 1)).astype("float32"),
        "half": np.array([8, 8], "int64"),
        "lead": np.array([-1, 16], "int64"),
    }
    nodes = [
        node("Conv", "x w1 b1", "c1", pads=[1, 1, 1, 1], name="/stem/Conv"),
        node("Sigmoid", "c1", "s1", name="/stem/Sigmoid"),
        node("Mul", "c1 s1", "m1", name="/stem/Mul"),
        node("Identity", "m1", "i1", name="/stem/Identity"),
        node("Conv", "i1 w2", "c2", name="/branch/Conv"),
        node("Relu", "c2", "r2", name="/branch/Relu"),
        node("Concat", "m1 r2", "k", axis=1, name="/Concat"),
        node("MaxPool", "k", "p", kernel_shape=[2, 2], strides=[2, 2], name="/MaxPool"),
        node("Concat", "lead half", "target", axis=0, name="/target"),
        node("Reshape", "p target", "y", name="/Reshape"),
    ]
    if not named:
        for one in nodes:
            one.name = ""
    return save(path, nodes, [value("x", ["n", 3, 16, 16])], [value("y", ["n", 16, 8, 8])], weights)
