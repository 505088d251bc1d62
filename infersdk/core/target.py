"""Target: the backend, device and precision that run a model, and the one way to write them as text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from .precision import check_precision

__all__ = ["Target"]

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
