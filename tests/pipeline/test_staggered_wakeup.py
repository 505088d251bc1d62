"""Threads that wait and are let through a few at a time: nobody is forgotten, whatever ends the waiting."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

from infersdk.pipeline.staggered_wakeup import Gate, StaggeredWakeup

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = 30.0


def sleepers(
    wakeup: StaggeredWakeup, count: int, then: Callable[[int], None]
) -> tuple[list[Gate], list[threading.Thread]]:
    gates = [Gate() for _ in range(count)]

    def work(i: int) -> None:
        assert wakeup.wait(gates[i], LONG)
        then(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    return gates, threads


def test_who_was_let_through_does_not_wait() -> None:
    wakeup, gate = StaggeredWakeup(), Gate()
    wakeup.let(gate)
    assert wakeup.wait(gate)


def test_who_was_not_waits_so_long_and_is_not_waited_for() -> None:
    wakeup, gone, gate = StaggeredWakeup(abreast=1), Gate(), Gate()
    assert not wakeup.wait(gone, 0.01)
    assert not wakeup.wait(Gate(), 0)
    wakeup.let(gone)  # too late: it does not stand in anybody's way
    wakeup.let(gate)
    assert wakeup.wait(gate, LONG)


def test_twice_is_once() -> None:
    wakeup, gate, other = StaggeredWakeup(abreast=1), Gate(), Gate()
    for _ in range(2):
        wakeup.let(gate)
        wakeup.let(other)
    assert wakeup.wait(gate, LONG)
    wakeup.let(gate)
    assert wakeup.wait(other, LONG)


def test_each_wakes_the_next() -> None:
    wakeup, order = StaggeredWakeup(abreast=1), list[int]()
    gates, threads = sleepers(wakeup, 16, order.append)
    for gate in gates:
        wakeup.let(gate)
    for thread in threads:
        thread.join(LONG)
    assert sorted(order) == list(range(16))


def test_only_so_many_are_woken_at_a_time() -> None:
    wakeup, gates = StaggeredWakeup(abreast=2), [Gate() for _ in range(5)]
    for gate in gates:
        wakeup.let(gate)
    assert [gate.open for gate in gates] == [True, True, False, False, False]
    assert wakeup.wait(gates[0])
    assert gates[2].open
    assert wakeup.wait(gates[3], 0)  # in line, and gone before its turn
    assert wakeup.wait(gates[1])
    assert gates[4].open


def test_turmoil() -> None:
    """Those let through, those out of patience, and both at once: all come back, and all turns with them."""
    wakeup, rng = StaggeredWakeup(abreast=2), random.Random(3)
    told: list[tuple[bool, bool]] = []

    def work(gate: Gate, patience: float | None) -> None:
        told.append((wakeup.wait(gate, patience), gate.called))

    for _ in range(30):
        gates = [Gate() for _ in range(24)]
        patience = [rng.choice([None, 0, 0.0005, 0.002]) for _ in gates]
        threads = [threading.Thread(target=work, args=pair) for pair in zip(gates, patience, strict=True)]
        for thread in threads:
            thread.start()
        for gate in rng.sample(gates, len(gates)):
            wakeup.let(gate)
            if rng.random() < 0.2:
                time.sleep(0.0005)
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()
    assert len(told) == 30 * 24
    assert any(through for through, _ in told)
    last = [Gate(), Gate()]
    for gate in last:
        wakeup.let(gate)
    assert all(gate.open for gate in last)  # both turns are free again
