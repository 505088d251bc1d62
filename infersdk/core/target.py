"""Target: the backend, device and precision that run a model, the one way to write them as text, and precisions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from .device import Device

__all__ = ["PRECISIONS", "Target", "arithmetic_of", "check_precision", "describe_layers", "keeps_precision"]

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


_FORM = re.compile(r"(?P<backend>[^@/\s]+)(@(?P<device>[^@/\s]+))?(/(?P<precision>\w+))?")


@dataclass(frozen=True)
class Target:
    """What runs a model, written as `"openvino"`, `"onnxruntime@cuda:0"`, `"openvino/bf16"` or `"openvino@cpu/bf16"`.

    Attributes:
        backend: a name out of `infersdk.list_backends()`.
        device: None is the backend's default device.
        precision: None runs the model as it was written.
    """

    backend: str
    device: str | None = None
    precision: str | None = None

    @classmethod
    def parse(cls, text: str | Target) -> Target:
        """The target that a text names; a `Target` is returned as it is. Whether it exists here shows on loading.

        Raises:
            ConfigError: the text is not of that form, or names an unknown precision.
        """
        if isinstance(text, Target):
            return text
        match = _FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(
                f"{text!r} does not name a backend; write backend, backend@device, backend/precision or "
                "backend@device/precision, such as 'onnxruntime@cuda:0/fp16'"
            )
        check_precision(match["precision"], f"precision in {text!r}:")
        return cls(match["backend"], match["device"], match["precision"])

    @property
    def arguments(self) -> dict[str, Any]:
        """The three as keyword arguments of `load()` and of the model wrappers."""
        return {"backend": self.backend, "device": self.device, "precision": self.precision}

    def __str__(self) -> str:
        device = f"@{self.device}" if self.device else ""
        precision = f"/{self.precision}" if self.precision else ""
        return f"{self.backend}{device}{precision}"
