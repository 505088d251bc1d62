"""Batches of rows that do not depend on each other, such as the images of several requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .tensor import Tensor

__all__ = ["IndependentRows"]


class IndependentRows:
    """The part of an `Infer` that is about such batches. A backend may run their rows in another way than together."""

    #: Runs of a shape that prepare it: later ones take no longer than it always takes.
    warm_up_runs: int = 1

    if TYPE_CHECKING:  # of `Infer`

        def forward(self) -> Mapping[str, Tensor]: ...

    def forward_rows(self) -> Mapping[str, Tensor]:
        """As `forward()`, for a batch whose rows do not depend on each other, such as the images of several requests.

        A backend may run such rows one by one, side by side on the cores of the processor, where that takes less time.
        """
        return self.forward()

    def runs_to_warm_up(self, count: int) -> int:
        """How many runs of `count` such rows prepare them, so that later ones take no longer than they always take."""
        return self.warm_up_runs
