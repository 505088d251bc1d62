"""Conditions of clones that run on one core of the processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import UnsupportedModelError

if TYPE_CHECKING:
    from pathlib import Path

    from ...core.model_source import ModelSource
    from .options import Options

__all__ = ["UnchangedFile", "may_run_on_one_core"]


def may_run_on_one_core(options: Options) -> bool:
    """Whether the runtime chooses the threads."""
    return (
        not options.threads
        and not options.inter_op_threads
        and options.execution_mode == "sequential"
        and not options.profiling
        and not any(key.startswith("session.intra_op") for key in options.session_config)
    )


class UnchangedFile:
    """The state of a model's file on loading, since a second session must have the same model."""

    def __init__(self, model: ModelSource) -> None:
        path = model.path
        self._name = str(model)
        self._files = [] if path is None else [
            path, path.with_name(f"{path.name}.data"), path.with_suffix(".data"), path.with_name(f"{path.name}_data"),
        ]  # fmt: skip
        self._states = [_state_of(file) for file in self._files]

    def check(self) -> None:
        """Raises UnsupportedModelError if the file has changed."""
        if [_state_of(file) for file in self._files] != self._states:
            raise UnsupportedModelError(f"{self._name!r} has changed since it was loaded; load it again")


def _state_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
