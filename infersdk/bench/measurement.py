"""The measurement of one scenario in one round."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Measurement"]


@dataclass
class Measurement:
    """The measurement of one scenario in one round.

    Attributes:
        images: images (rows) that were run in `seconds`.
        latencies: seconds of each request: a run or call of a whole batch, or in a pipeline one image.
        stages: seconds by stage, for each of the requests.
        rate: of the scenario `"server"`: the requests a second that arrived on average.
        late: of the scenario `"server"`: requests that took longer than the bound.
    """

    images: int
    seconds: float
    latencies: list[float]
    stages: dict[str, list[float]] = field(default_factory=dict)
    rate: float | None = None
    late: int | None = None
