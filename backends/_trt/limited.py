"""Loading an engine within a `memory_limit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ..._text import logger
from ...errors import MemoryLimitError, UnsupportedModelError
from ...memory_limit import Budgeted
from .engine import Engine
from .memory import EngineMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...cache import Cache
    from ...model_source import ModelSource
    from .._cuda import CudaDevice
    from .details import EngineDetails
    from .flavour import Flavour

__all__ = ["LimitedEngine"]

_log = logger("infersdk.tensorrt")


class LimitedEngine(Budgeted):
    """The part of the Infer on TensorRT that keeps the limit."""

    flavour: ClassVar[Flavour]
    model: ModelSource
    options: Any
    _cuda: CudaDevice
    _engine: Engine
    _memory: EngineMemory | None = None
    _load_built: Callable[..., EngineDetails]  # the engine from the cache, or a new one

    def _load_onnx(self, cache: Cache | None) -> EngineDetails:
        try:
            return self._load_built(cache, self.options)
        except MemoryLimitError as error:
            left = 0 if self._memory is None else self._memory.workspace_left
            if self.options.workspace is not None or left <= 0:
                raise
            _log.info("%s; it is built again with a workspace of at most %d bytes", error, left)
            try:
                return self._load_built(cache, msgspec.structs.replace(self.options, workspace=left))
            except UnsupportedModelError:  # the builder finds no kernels that take less
                raise error from None

    def _engine_of(self, data: bytes, details: EngineDetails | None, cache: Cache | None) -> Engine:
        """The engine, if it fits the `memory_limit`: checked by what its builder said, and by what it says itself."""
        budget = self.memory_budget
        self._memory = memory = None if budget is None else EngineMemory.of(budget, data, details)
        if memory is not None:
            memory.check()
        engine = Engine(self.flavour, data, str(self.model), self._cuda, cache, memory)
        if memory is not None and engine.scratch_nbytes != memory.workspace:
            memory.workspace = engine.scratch_nbytes
            try:
                memory.check(loaded=True)
            except MemoryLimitError:
                del engine  # the error keeps this frame
                raise
        return engine

    def _instance_needs(self) -> dict[str, int]:
        tensors = super()._instance_needs()
        if self._memory is not None and self._memory.tensors:
            tensors = {"inputs and outputs": self._memory.tensors}
        return {"workspace": self._engine.next_scratch_nbytes, **tensors}
