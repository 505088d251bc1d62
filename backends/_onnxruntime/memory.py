"""The runtime's arena on a GPU under a `memory_limit`."""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING, Any

from ..._sizes import size_text
from ...errors import ConfigError, MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...memory_limit import MemoryBudget

__all__ = ["Arena"]

#: The part of a limit that is left for tensors and for what a wrapper holds.
_REST = 4
#: What the runtime says when its arena is full.
_FULL = re.compile(r"BFCArena|Available memory of \d+ is smaller than requested bytes|Failed to allocate memory")
_REMEDY = "use a smaller max_batch or precision='fp16'"


class Arena:
    """What the sessions of a model allocate from, on the device.

    Args:
        budget: of the model.
        tensors: bytes of all tensors of the instances that run side by side.
        weights: bytes of the weights, in the file; the session's own are about as many.
        settings: of the provider, as far as they are given.

    Raises:
        ConfigError: `gpu_mem_limit` is not a number.
        MemoryLimitError: the weights and the tensors do not fit.
    """

    def __init__(self, budget: MemoryBudget, tensors: int, weights: int, settings: Mapping[str, Any]) -> None:
        self._budget = budget
        given = settings.get("gpu_mem_limit")
        if given is not None and not str(given).isdecimal():
            raise ConfigError(f"gpu_mem_limit is a number of bytes, not {given!r}")
        rest = max(budget.limit // _REST, tensors)
        self.limit = budget.limit - rest if given is None else int(str(given))
        budget.require({"weights": weights, "inputs and outputs": tensors}, _REMEDY)
        if weights > self.limit or self.limit <= 0:
            enough = max(-(-weights * _REST // (_REST - 1)), weights + tensors)
            raise MemoryLimitError(
                f"{budget.name}: of memory_limit {size_text(budget.limit)} the runtime's arena has "
                f"{size_text(max(self.limit, 0))}, and the weights alone are {size_text(weights)}; {_REMEDY}, raise "
                f"memory_limit to {enough} bytes, or divide it with provider_options={{'gpu_mem_limit': ...}}"
            )

    @property
    def settings(self) -> dict[str, str]:
        """For the provider: blocks of the size that is asked for, since the arena's own strategy doubles them."""
        return {"gpu_mem_limit": str(self.limit), "arena_extend_strategy": "kSameAsRequested"}

    def hold(self, session: Any) -> None:
        """Counts the whole arena as long as the session lives.

        Raises:
            MemoryLimitError: tensors have taken what it needs.
        """
        weakref.finalize(session, self._budget.reserve(self.limit).close).atexit = False

    def error_of(self, error: BaseException) -> MemoryLimitError | None:
        """What a failure of the runtime means, if its arena was full."""
        if _FULL.search(str(error)) is None:
            return None
        return MemoryLimitError(
            f"{self._budget.name} needs more than {size_text(self.limit)} for weights and workspace, its runtime's "
            f"arena within memory_limit {size_text(self._budget.limit)}; {_REMEDY}, or raise memory_limit"
        )
