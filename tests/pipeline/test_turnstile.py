"""Threads that wait and are let through a few at a time: nobody is forgotten, whatever ends the waiting."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

from infersdk.pipeline.turnstile import Gate, Turnstile

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = 30.0


def sleepers(
    turnstile: Turnstile, count: int, then: Callable[[int], None]
) -> tuple[list[Gate], list[threading.Thread]]:
    gates = [Gate() for _ in range(count)]

    def work(i: int) -> None:
        assert turnstile.wait(gates[i], LONG)
        then(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    return gates, threads


def test_who_was_let_through_does_not_wait() -> None:
    turnstile, gate = Turnstile(), Gate()
    turnstile.let(gate)
    assert turnstile.wait(gate)


def test_who_was_not_waits_so_long_and_is_not_waited_for() -> None:
    turnstile, gone, gate = Turnstile(abreast=1), Gate(), Gate()
    assert not turnstile.wait(gone, 0.01)
    assert not turnstile.wait(Gate(), 0)
    turnstile.let(gone)  # too late: it does not stand in anybody's way
    turnstile.let(gate)
    assert turnstile.wait(gate, LONG)


def test_twice_is_once() -> None:
    turnstile, gate, other = Turnstile(abreast=1), Gate(), Gate()
    for _ in range(2):
        turnstile.let(gate)
        turnstile.let(other)
    assert turnstile.wait(gate, LONG)
    turnstile.let(gate)
    assert turnstile.wait(other, LONG)


def test_each_wakes_the_next() -> None:
    turnstile, order = Turnstile(abreast=1), list[int]()
    gates, threads = sleepers(turnstile, 16, order.append)
    for gate in gates:
        turnstile.let(gate)
    for thread in threads:
        thread.join(LONG)
    assert sorted(order) == list(range(16))


def test_only_so_many_are_woken_at_a_time() -> None:
    turnstile, gates = Turnstile(abreast=2), [Gate() for _ in range(5)]
    for gate in gates:
        turnstile.let(gate)
    assert [gate.open for gate in gates] == [True, True, False, False, False]
    assert turnstile.wait(gates[0])
    assert gates[2].open
    assert turnstile.wait(gates[3], 0)  # in line, and gone before its turn
    assert turnstile.wait(gates[1])
    assert gates[4].open


def test_turmoil() -> None:
    """Those let through, those out of patience, and both at once: all come back, and all turns with them."""
    turnstile, rng = Turnstile(abreast=2), random.Random(3)
    told: list[tuple[bool, bool]] = []

    def work(gate: Gate, patience: float | None) -> None:
        told.append((turnstile.wait(gate, patience), gate.called))

    for _ in range(30):
        gates = [Gate() for _ in range(24)]
        patience = [rng.choice([None, 0, 0.0005, 0.002]) for _ in gates]
        threads = [threading.Thread(target=work, args=pair) for pair in zip(gates, patience, strict=True)]
        for thread in threads:
            thread.start()
        for gate in rng.sample(gates, len(gates)):
            turnstile.let(gate)
            if rng.random() < 0.2:
                time.sleep(0.0005)
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()
    assert len(told) == 30 * 24
    assert any(through for through, _ in told)
    last = [Gate(), Gate()]
    for gate in last:
        turnstile.let(gate)
    assert all(gate.open for gate in last)  # both turns are free again
