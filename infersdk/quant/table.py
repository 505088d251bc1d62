"""The calibration table, as a JSON file or a TensorRT calibration cache."""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING, Literal

import msgspec

from ..core.files import atomic_write, read_regular
from ..errors import CalibrationError
from ..graph.digest import model_digest

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

__all__ = ["CalibrationTable", "Method", "TensorRange", "check_table", "read_tensorrt_cache"]

#: The maximum file size in bytes.
MAX_BYTES = 64 << 20

Method = Literal["mse", "entropy", "minmax", "percentile"]


class TensorRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The range of one activation.

    Attributes:
        min, max: the range of the observed values.
        low, high: the range of uint8 codes, which contains 0. Values beyond it are clipped.
        threshold: T for int8 codes with the range -T to T and the scale T / 127.
        mean: the mean of each channel; [] if unknown.
    """

    min: float
    max: float
    low: float
    high: float
    threshold: float
    mean: list[float] = []

    def __post_init__(self) -> None:
        if not (math.isfinite(self.threshold) and self.threshold > 0):
            raise ValueError(f"threshold must be finite and above 0, not {self.threshold!r}")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= 0 <= self.high != self.low):
            raise ValueError(
                f"the range must be finite, contain 0 and not be empty; it is {self.low!r} to {self.high!r}"
            )

    @classmethod
    def symmetric(cls, threshold: float) -> TensorRange:
        """A range from -threshold to threshold."""
        return cls(min=-threshold, max=threshold, low=-threshold, high=threshold, threshold=threshold)

    @property
    def scale(self) -> float:
        """The scale of int8 codes."""
        return self.threshold / 127


class CalibrationTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ranges of a model's activations.

    Attributes:
        model: the SHA-256 digest of the model; "" if unknown, as for a TensorRT cache.
        name: the name of the model file.
        method: the calibration method.
        percentile: the percentile of that method; None for other methods.
        bias_correction: whether to correct biases for the rounding of weights.
        samples: the number of images, or of rows of arrays.
        tensors: the ranges by name of the activation.
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
        """Writes the table as JSON. Raises OutputError."""
        atomic_write(path, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CalibrationTable:
        """Reads a table that `save` wrote, or a TensorRT calibration cache.

        Raises:
            CalibrationError: the file does not exist or is not valid.
        """
        data = _read(path)
        if re.match(rb"TRT-\S*Calibration", data):
            return read_tensorrt_cache(path)
        try:
            return msgspec.json.decode(data, type=cls)
        except (ValueError, RecursionError) as error:
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
                f"the table has no range for {missing[0]!r} ({len(missing)} missing, {len(self.tensors)} present); it "
                "is for another model, another version of the model, or another target; calibrate again"
            )

    def save_tensorrt_cache(self, path: str | os.PathLike[str], version: str = "10000") -> None:
        """Writes a TensorRT cache: a header, then `name: scale`, with scales as big-endian float32 in hex.

        Args:
            path: the file.
            version: the TensorRT version in the notation of its caches: 8601 is 8.6.1, 101300 is 10.13.0.
        """
        kind = "MinMaxCalibration" if self.method == "minmax" else "EntropyCalibration2"
        lines = [f"TRT-{version}-{kind}"]
        for name, result in self.tensors.items():
            if "\n" in name:
                raise CalibrationError(f"{name!r} has a line break, which a TensorRT cache cannot contain")
            lines.append(f"{name}: {struct.pack('>f', result.scale).hex()}")
        atomic_write(path, "\n".join([*lines, ""]).encode())


def check_table(given: object) -> None:
    """Raises CalibrationError for anything but a table."""
    if not isinstance(given, CalibrationTable):
        raise CalibrationError(
            f"the table is a {type(given).__name__}; give that of calibrate(), or CalibrationTable.load() of a file"
        )


def read_tensorrt_cache(path: str | os.PathLike[str]) -> CalibrationTable:
    """Reads a TensorRT calibration cache, which does not identify its model.

    Raises:
        CalibrationError: the file does not exist or is not valid.
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
