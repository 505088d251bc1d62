"""Parallel runs of one model on the cores of a processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.tensor import Tensor
    from ..infer import Infer

__all__ = ["SideBySide", "runs_side_by_side"]


def runs_side_by_side(infer: Infer) -> int:
    """The number of parallel runs that suits a model: on a processor one more than cores, since its threads also
    distribute results.
    """
    return infer.scheduling.one_core_clones + 1 if infer.scheduling.one_core_clones else infer.scheduling.concurrency


class SideBySide:
    """Runs an `Infer` on all cores while no other run of its model is in progress, and on one core otherwise.

    Threads of a runtime wait for each other after each layer, so parallel runs of one thread each have a higher
    throughput. A model without clones for one core always runs on the `Infer`.

    Args:
        infer: its inputs are filled; it stays the caller's. Other `SideBySide` have clones of it.
    """

    def __init__(self, infer: Infer) -> None:
        self._infer, self._under_way = infer, infer._side_by_side
        self._on_one_core: Infer | None = None  # a clone that is made when it is first needed

    def forward(self) -> Mapping[str, Tensor]:
        """Runs; returns the outputs, which the next run overwrites."""
        under_way = self._under_way
        infer = self._clone() if under_way and self._infer.scheduling.one_core_clones else self._infer
        under_way.append(None)
        try:
            return infer.forward()
        finally:
            under_way.pop()

    def _clone(self) -> Infer:
        """The clone on one core, with the inputs of the model."""
        if self._on_one_core is None:
            self._on_one_core = self._infer.clone(one_core=True)
        for name, tensor in self._infer.inputs.items():
            if self._on_one_core.inputs[name] is not tensor:
                self._on_one_core.bind(name, tensor)
        return self._on_one_core

    def warm_up(self) -> None:
        """Runs the present inputs on one core."""
        if self._infer.scheduling.one_core_clones:
            self._clone().forward()

    def close(self) -> None:
        """Frees the clone. A later run makes another one."""
        clone, self._on_one_core = self._on_one_core, None
        if clone is not None:
            clone.close()
