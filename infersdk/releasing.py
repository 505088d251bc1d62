"""Giving memory back between uses: `infer.release()`, and what clones share made again when one is used.

A backend that can be released keeps in host memory what it loads from in milliseconds: the graph as the runtime
executes it, a compiled model, an engine.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .errors import MemoryLimitError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from .tensor import Tensor

__all__ = ["Releasable", "SharedRuntime"]

T = TypeVar("T")


class SharedRuntime(Generic[T]):
    """What an Infer and its clones share (a session, an engine), as long as one of them has it.

    Args:
        value: what there is now.
    """

    def __init__(self, value: T) -> None:
        self._alive = weakref.ref(value)
        self._lock = threading.Lock()
        self._make: Callable[[], T] | None = None

    def keep(self, prepare: Callable[[], Callable[[], T]]) -> None:
        """Before the last one lets go of it: keeps what makes it again. `prepare` is called once."""
        with self._lock:
            if self._make is None:
                self._make = prepare()

    def get(self) -> T:
        """The value that a clone still has, or a new one."""
        with self._lock:
            value = self._alive()
            if value is None:
                assert self._make is not None
                value = self._make()
                self._alive = weakref.ref(value)
            return value


class Releasable:
    """The part of an `Infer` that gives memory back. A backend fills in `_release()` and `_restore()`."""

    _released = False
    _closed: bool
    _inputs: dict[str, Tensor]
    _outputs: dict[str, Tensor]
    _bound: list[int] | None
    _lent: set[str]  # names of tensors that belong to the user
    _held: list[Any]  # the blocks of the bound tensors

    if TYPE_CHECKING:  # of `Infer`

        def _set_tensor(self, name: str, tensor: Tensor) -> None: ...
        def _using(self) -> AbstractContextManager[None]: ...
        def charging(self) -> AbstractContextManager[Any]: ...
        def _check_open(self) -> None: ...
        def _create_tensors(self) -> None: ...
        def _wait(self) -> None: ...

    @property
    def is_released(self) -> bool:
        """Whether the memory was given back; the next use takes it again."""
        return self._released

    def release(self) -> None:
        """Gives back the memory of the runtime and of the tensors; the next use takes it again, in milliseconds.

        What the model is loaded from stays in host memory. The bound tensors are closed, apart from those that are the
        caller's (`bind()`), and their contents are lost. What clones share is freed when all of them are released or
        closed. Called while no run is under way; a second call does nothing.

        Raises:
            UnsupportedModelError: the backend cannot do this.
            ClosedError: it is closed.
            InUseError: another thread runs it.
        """
        with self._using():
            if self._released and not self._closed:
                return
            self._check_open()
            self._wait()
            self._release()
            self._released, self._bound = True, None
            self._close_tensors()

    def _take_up(self) -> None:
        """The runtime and the tensors again; those of the caller are bound as they were."""
        before = self._inputs, self._outputs, self._lent
        lent = {name: self._inputs.get(name) or self._outputs[name] for name in self._lent}
        with self.charging():
            self._restore()
            try:
                self._create_tensors()
            except MemoryLimitError:  # it stays as it was
                self._release()
                self._inputs, self._outputs, self._lent = before
                raise
        self._released = False
        for name, tensor in lent.items():
            self._set_tensor(name, tensor)

    def _close_tensors(self) -> None:
        self._held = []
        for name, tensor in (*self._inputs.items(), *self._outputs.items()):
            if name not in self._lent:
                tensor.close()

    # ---- what a backend fills in ----

    def _release(self) -> None:
        """Keeps what the model is loaded from again, and frees what the runtime holds."""
        raise UnsupportedModelError(
            f"a {type(self).__name__} cannot be released; close() it, and load the model again when it is needed"
        )

    def _restore(self) -> None:
        """Takes the runtime up again. The tensors are made anew afterwards."""
