"""Compiles the programs of this folder once a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from native_programs import CORE, build_program, shared_folder

Build = Callable[..., list[str]]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """`build("test_core.c", sanitize="address", sources=CORE)`: the command that runs the program, compiled once.

    The test skips where there is no compiler, or no such sanitizer that works.
    """
    folder = shared_folder(tmp_path_factory)
    built: dict[tuple[object, ...], list[str] | str] = {}

    def once(
        program: str, *, sanitize: str = "", sources: Sequence[str] = CORE, optimize: str = "-O1", target: str = ""
    ) -> list[str]:
        key = (program, sanitize, optimize, target, *sources)
        if key not in built:
            built[key] = build_program(folder, program, sanitize, sources, optimize, target)
        found = built[key]
        if isinstance(found, str):
            pytest.skip(found)
        return found

    return once
