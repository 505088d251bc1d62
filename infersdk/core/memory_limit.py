"""`memory_limit=`: the device memory of a model and its clones, counted and limited.

These count: the weights and the workspace of the runtime, the tensors of each instance, and a wrapper's memory on the
device (images, decoders, results). These do not: CUDA's own context and libraries, the kernels that a runtime loads or
compiles, and CUDA graphs; the driver takes these, and no interface limits them.
"""

from __future__ import annotations

import contextlib
import threading
from math import prod
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, MemoryLimitError
from ._lib import Handle, lib, returned
from .text import parse_size, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .backend import BackendOptions
    from .device import Device
    from .tensor_spec import TensorSpec

__all__ = ["MemoryBudget", "charging", "check_option", "tensor_nbytes"]


_PROCESS = "limit the whole process there (docker --memory, systemd-run -p MemoryMax=...)"


class MemoryBudget(Handle):
    """The device memory of one model: the bytes that it and its clones hold, and the maximum.

    Args:
        name: of the model, for messages.
        limit: bytes.
        device: the model's, for messages.
    """

    def __init__(self, name: str, limit: int, device: str) -> None:
        self.name, self.limit, self._device = name, limit, device
        self._own(returned("ifs_budget *", lib.ifs_budget_create, name.encode(), limit), lib.ifs_budget_destroy)

    @classmethod
    def of(cls, options: BackendOptions, device: Device, name: str) -> MemoryBudget | None:
        """The budget that a backend's options ask for; None where they ask for none.

        A model that is loaded within `charging()`, as a part of another one, has that one's budget.

        Raises:
            ConfigError: it is not a size, or the model runs on a processor.
        """
        asked = getattr(options, "memory_limit", None)
        limit = None if asked is None else parse_size(asked, "memory_limit")
        if limit == 0:
            raise ConfigError(f"memory_limit is a number of bytes above 0, not {asked!r}; leave it out for no limit")
        if device.kind == "cuda":
            whole: MemoryBudget | None = getattr(_in_use, "budget", None)
            return whole if whole is not None or limit is None else cls(name, limit, str(device))
        if limit is not None:
            raise ConfigError(
                f"memory_limit={asked!r} limits the memory of a CUDA device, and {name} runs on {str(device)!r}; "
                f"{_PROCESS}, or leave memory_limit out"
            )
        return None

    @property
    def used(self) -> int:
        """Bytes that are counted now."""
        return int(lib.ifs_budget_used(self._open))

    @property
    def peak(self) -> int:
        """The most bytes that were counted at a time."""
        return int(lib.ifs_budget_peak(self._open))

    def reserve(self, nbytes: int) -> Handle:
        """Counts the memory that another library allocates, until the result is closed or collected.

        Raises:
            MemoryLimitError: it does not fit.
        """
        reservation = Handle()
        handle = returned("ifs_reservation *", lib.ifs_reservation_create, self._open, nbytes)
        reservation._own(handle, lib.ifs_reservation_destroy)
        return reservation

    def require(self, needs: Mapping[str, int], remedy: str) -> None:
        """Checks that all of it fits together with the memory in use, before any of it is allocated.

        Args:
            needs: bytes by purpose.
            remedy: a change that makes it smaller.

        Raises:
            MemoryLimitError: it does not fit.
        """
        used, total = self.used, sum(needs.values())
        if used + total <= self.limit:
            return
        parts = ", ".join(f"{what} {size_text(nbytes)}" for what, nbytes in needs.items() if nbytes)
        held = f", and {size_text(used)} are in use" if used else ""
        raise MemoryLimitError(
            f"{self.name} needs {size_text(total)} on {self._device} ({parts}){held}, and memory_limit is "
            f"{size_text(self.limit)}; {remedy}, or raise memory_limit to {used + total} bytes"
        )

    def __repr__(self) -> str:
        if self._c is None:
            return "<MemoryBudget closed>"
        return f"<MemoryBudget of {self.name}, {self.used} of {self.limit} bytes>"


#: The budget that a thread charges.
_in_use = threading.local()


def tensor_nbytes(spec: TensorSpec, max_batch: int | None) -> int:
    """The bytes of memory for a tensor of a model; free sizes other than the batch count as 1."""
    if spec.kind != "tensor":
        return 0
    rest = spec.shape[1:] if max_batch and spec.has_free_batch else spec.shape
    rows = max_batch if max_batch and spec.has_free_batch else 1
    return rows * prod(d if isinstance(d, int) else 1 for d in rest) * spec.dtype.itemsize


def check_option(options: Mapping[str, Any], kind: type[BackendOptions], backend: str) -> None:
    """Raises ConfigError for a `memory_limit` that a backend cannot keep: an unknown option would say less."""
    if options.get("memory_limit") is not None and not kind.has("memory_limit"):
        raise ConfigError(
            f"memory_limit={options['memory_limit']!r}: the runtime of backend {backend!r} takes its memory from the "
            f"system, without a limit; {_PROCESS}, or use backend 'tensorrt', 'tensorrt-rtx' or 'onnxruntime' on a "
            "CUDA device"
        )


@contextlib.contextmanager
def charging(budget: MemoryBudget | None) -> Iterator[None]:
    """Within it, the tensors and decoders that this thread creates belong to the budget for all their life.

    For None it does nothing.
    """
    if budget is None:
        yield
        return
    before: MemoryBudget | None = getattr(_in_use, "budget", None)
    handle = budget._open  # kept to the end, also where another thread closes the budget
    outer = lib.ifs_budget_use(handle)
    _in_use.budget = budget
    try:
        yield
    finally:
        _in_use.budget = before
        lib.ifs_budget_use(outer)
