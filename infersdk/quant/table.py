"""The calibration table: what was learnt from the data, as JSON to be read and reused, and TensorRT's form of it."""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING, Literal

import msgspec

from .._files import atomic_write, read_regular
from ..errors import CalibrationError
from ..graph.digest import model_digest

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

__all__ = ["CalibrationTable", "Method", "TensorRange", "read_tensorrt_cache"]

#: The largest file of a table, in bytes.
MAX_BYTES = 64 << 20

Method = Literal["mse", "entropy", "minmax", "percentile"]


class TensorRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The range of one activation.

    Attributes:
        min, max: the values seen.
        low, high: what uint8 codes cover; beyond it values are clipped. It holds 0.
        threshold: T of int8 codes, which cover -T to T; their scale is T / 127.
        mean: of each channel; [] where it is not known.
    """

    min: float
    max: float
    low: float
    high: float
    threshold: float
    mean: list[float] = []

    def __post_init__(self) -> None:
        if not (math.isfinite(self.threshold) and self.threshold > 0):
            raise ValueError(f"threshold is {self.threshold!r}; it must be finite and above 0")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= 0 <= self.high != self.low):
            raise ValueError(f"the range is {self.low!r} to {self.high!r}; it must be finite, hold 0, and have a width")

    @classmethod
    def symmetric(cls, threshold: float) -> TensorRange:
        """A range of which T alone is known."""
        return cls(min=-threshold, max=threshold, low=-threshold, high=threshold, threshold=threshold)

    @property
    def scale(self) -> float:
        """Of int8 codes."""
        return self.threshold / 127


class CalibrationTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ranges of a model's activations.

    Attributes:
        model: SHA-256 of the model that it is for; "" where that is not known, as of a TensorRT cache.
        name: of the model's file.
        method: how the ranges were chosen.
        percentile: of that method; None for others.
        bias_correction: whether biases shall make up for the rounding of weights.
        samples: how many images, or rows of arrays, were observed.
        tensors: by name of the activation.
    """

    format: Literal["infersdk calibration 1"] = "infersdk calibration 1"
    model: str = ""
    name: str = ""
    method: Method = "mse"
    percentile: float | None = None
    bias_correction: bool = True
    samples: int = 0
    tensors: dict[str, TensorRange]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as JSON. Raises OutputError."""
        atomic_write(path, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CalibrationTable:
        """Reads what `save` wrote, or a TensorRT calibration cache.

        Raises:
            CalibrationError: there is no such file, or it is damaged.
        """
        data = _read(path)
        if re.match(rb"TRT-\S*Calibration", data):
            return read_tensorrt_cache(path)
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CalibrationError(f"{str(path)!r} is not a calibration table: {error}") from None

    def check(self, model: str | os.PathLike[str]) -> None:
        """Raises CalibrationError unless the table is for this model file."""
        if self.model and (digest := model_digest(model)) != self.model:
            raise CalibrationError(
                f"the table was made for {self.name or 'another model'} ({self.model[:12]}), and {str(model)!r} is "
                f"{digest[:12]}; calibrate this model"
            )

    def require(self, tensors: Iterable[str]) -> None:
        """Raises CalibrationError unless there is a range for each of these activations."""
        if missing := [name for name in tensors if name not in self.tensors]:
            raise CalibrationError(
                f"the table has no range for {missing[0]!r} ({len(missing)} are missing, {len(self.tensors)} are "
                "there); it is of another model or another version of it, or was made for another target: calibrate "
                "again"
            )

    def save_tensorrt_cache(self, path: str | os.PathLike[str], version: str = "10000") -> None:
        """Writes TensorRT's text form: a header, then `name: scale` with the bits of a float32, big-endian, in hex.

        Args:
            path: the file.
            version: of TensorRT, as its caches have it: 8601 is 8.6.1, 101300 is 10.13.0.
        """
        kind = "MinMaxCalibration" if self.method == "minmax" else "EntropyCalibration2"
        lines = [f"TRT-{version}-{kind}"]
        for name, result in self.tensors.items():
            if "\n" in name:
                raise CalibrationError(f"{name!r} has a line break, which a TensorRT cache cannot hold")
            lines.append(f"{name}: {struct.pack('>f', result.scale).hex()}")
        atomic_write(path, "\n".join([*lines, ""]).encode())


def read_tensorrt_cache(path: str | os.PathLike[str]) -> CalibrationTable:
    """The ranges in a TensorRT calibration cache. It does not say which model it is for.

    Raises:
        CalibrationError: there is no such file, or it is damaged.
    """
    text = _read(path).decode("utf-8", "replace")
    header, *lines = text.splitlines() or [""]
    if not (kind := re.fullmatch(r"TRT-\w+-(EntropyCalibration2?|MinMaxCalibration)", header.strip())):
        raise CalibrationError(f"{str(path)!r} begins with {header[:40]!r}, not with TRT-<version>-EntropyCalibration2")
    tensors = {}
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        name, sign, bits = line.rpartition(": ")
        if not sign or not re.fullmatch(r"[0-9a-fA-F]{1,8}", bits.strip()):
            raise CalibrationError(f"{str(path)!r}, line {number}: {line[:60]!r} is not `name: scale in hex`")
        threshold = struct.unpack(">f", bytes.fromhex(bits.strip().zfill(8)))[0] * 127
        try:
            tensors[name] = TensorRange.symmetric(threshold)
        except ValueError as error:
            raise CalibrationError(f"{str(path)!r}, line {number}: the {error}") from None
    method: Method = "minmax" if kind[1].startswith("MinMax") else "entropy"
    return CalibrationTable(method=method, tensors=tensors)


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return read_regular(path, MAX_BYTES)
    except OSError as error:
        raise CalibrationError(f"the calibration table {str(path)!r} cannot be read: {error.strerror}") from None
