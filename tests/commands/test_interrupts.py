"""SIGTERM and Ctrl-C in the command line."""

from __future__ import annotations

import signal
import threading

import pytest

from infersdk import cli
from infersdk.commands.interrupts import sigterm_interrupts


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_the_exit_code(
    number: signal.Signals,
    code: int,
    word: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work(argv: object) -> int:
        signal.raise_signal(number)
        return 0

    monkeypatch.setattr(cli, "_main", work)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert cli.main([]) == code
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == f"infersdk: {word}\n"


def test_sigterm_ends_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_interrupts() as terminated:
        assert not terminated.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert terminated.is_set()
    assert signal.getsignal(signal.SIGTERM) is before


def test_elsewhere_than_in_the_main_thread_signals_stay() -> None:
    seen = []

    def work() -> None:
        with sigterm_interrupts():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
