"""The precisions a model can run in: the one list of them."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ConfigError
from .device import Device

__all__ = ["PRECISIONS", "arithmetic_of", "check_precision", "describe_layers", "keeps_precision"]

#: From the widest to the narrowest.
PRECISIONS = ("fp32", "bf16", "fp16", "int8")


def check_precision(name: object, what: str = "precision") -> None:
    """Raises ConfigError unless `name` is a precision; None is one, and means that the model runs as it was written."""
    if name is not None and name not in PRECISIONS:
        raise ConfigError(f"unknown {what} {name!r}; use one of {', '.join(PRECISIONS)}")


def arithmetic_of(runs: str, device: str, required: str | None = None) -> str:
    """The precision that a network computes products in. Devices other than the processor may round the factors of FP32
    products to TF32, unless FP32 is required (docs/precision.md).

    Args:
        runs: the precision of most layers.
    """
    return "tf32" if runs == "fp32" and required is None and Device.parse(device).kind != "cpu" else runs


def keeps_precision(wanted: str, runs: str, layers: Mapping[str, int]) -> bool:
    """Whether `precision=wanted` is kept: most layers run in it, and none in a narrower one.

    Args:
        runs: the precision of most layers.
        layers: how many layers run in each.
    """
    narrower = PRECISIONS[PRECISIONS.index(wanted) + 1 :]
    return runs == wanted and not any(layers.get(name) for name in narrower)


def describe_layers(counts: Mapping[str, int]) -> str:
    """`Infer.layer_precisions` in words: `24 layers in fp32, 2 in int8`."""
    ranked = sorted(counts.items(), key=lambda entry: -entry[1])
    if not ranked:
        return "it has no layers that compute"
    (first, many), *rest = ranked
    return ", ".join([f"{many} layer{'s' if many > 1 else ''} in {first}", *(f"{n} in {name}" for name, n in rest)])
