"""The runtime's arena on a GPU under a `memory_limit`."""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING, Any

from ...core.sizes import size_text
from ...errors import ConfigError, MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...core.memory_limit import MemoryBudget

__all__ = ["Arena"]

#: One part in this many of a limit is for tensors and for the memory of wrappers.
_REST = 4
#: The runtime's messages for a full arena.
_FULL = re.compile(r"BFCArena|Available memory of \d+ is smaller than requested bytes|Failed to allocate memory")
_REMEDY = "use a smaller max_batch or precision='fp16'"


class Arena:
    """The device memory that the sessions of a model allocate from.

    Args:
        budget: of the model.
        tensors: bytes of all tensors of the parallel instances.
        weights: bytes of the weights in the file; a session takes about the same.
        settings: options of the provider from the user.

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
        """Options of the provider: blocks of the requested sizes, since the default strategy doubles them."""
        return {"gpu_mem_limit": str(self.limit), "arena_extend_strategy": "kSameAsRequested"}

    def hold(self, session: Any) -> None:
        """Counts the whole arena until the session is freed.

        Raises:
            MemoryLimitError: the limit does not leave enough beside the tensors.
        """
        weakref.finalize(session, self._budget.reserve(self.limit).close).atexit = False

    def error_of(self, error: BaseException) -> MemoryLimitError | None:
        """The error for a failure of the runtime with a full arena; None for other failures."""
        if _FULL.search(str(error)) is None:
            return None
        return MemoryLimitError(
            f"{self._budget.name} needs more than {size_text(self.limit)} for weights and workspace, its runtime's "
            f"arena within memory_limit {size_text(self._budget.limit)}; {_REMEDY}, or raise memory_limit"
        )
