"""Giving the memory of an engine back, and reading it again from host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from .engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...cache import Cache
    from ...model_source import ModelSource
    from ...releasing import SharedRuntime
    from .._cuda import CudaDevice
    from .flavour import Flavour

__all__ = ["ReleasableEngine"]


class ReleasableEngine:
    """The part of the Infer on TensorRT that releases it."""

    flavour: ClassVar[Flavour]
    model: ModelSource
    _cuda: CudaDevice
    _engine: Engine
    _shared: SharedRuntime[Engine]
    _kernels: Cache | None  # where the kernels that the runtime compiles are kept

    if TYPE_CHECKING:  # of the Infer

        def _start(self) -> None: ...
        def _free(self) -> None: ...

    def _release(self) -> None:
        self._shared.keep(self._loader)
        self._free()

    def _loader(self) -> Callable[[], Engine]:
        """What reads the engine again."""
        flavour, name, device, cache = self.flavour, str(self.model), self._cuda, self._kernels
        memory, compiled = self._engine.memory, self._engine.compiled
        with device:
            data = self._engine.serialized()

        def read() -> Engine:
            with device:
                return Engine(flavour, data, name, device, cache, memory, compiled)

        return read

    def _restore(self) -> None:
        self._engine = self._shared.get()
        with self._cuda:
            self._start()
