"""Where images are preprocessed for a device, by the time that both locations take."""

from __future__ import annotations

import pytest

from infersdk.models.execution.placement import LocationCost, WholeBatch


def measured(on_device: tuple[float, float], on_host: tuple[float, float], **run: float) -> WholeBatch:
    """A batch of which the thread and the whole way to the device took so many milliseconds at both locations."""
    costs = {"device": LocationCost(*on_device), "host": LocationCost(*on_host)}
    return WholeBatch((20, True), costs, **run)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        # The copies take longer than the model: the faster location.
        (measured((0.1, 6.0), (4.0, 4.0), queue=0.1, device=3.0, collect=0.5), "host"),
        (measured((0.1, 3.0), (4.0, 4.0), queue=0.1, device=2.0, collect=0.5), "device"),
        # The thread has more to do than the device, which copies meanwhile.
        (measured((0.1, 1.5), (1.2, 1.2), queue=0.2, device=1.5, collect=1.5), "device"),
        # The model takes longer than either: the location that is faster for a batch alone.
        (measured((0.1, 2.0), (1.0, 1.0), queue=0.1, device=9.0, collect=0.5), "host"),
        (measured((0.1, 1.0), (2.0, 2.0), queue=0.1, device=9.0, collect=0.5), "device"),
    ],
)
def test_auto(batch: WholeBatch, expected: str) -> None:
    assert batch.faster() == expected
