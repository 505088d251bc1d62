"""The rows of a batch, one by one on a session of one thread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import onnxruntime as ort

from ...custom_ops.ort import register_operators
from ...errors import UnsupportedModelError
from ...graph.files import private_copy
from ...graph.passes import prepared_model
from .._row_runs import RowShapesError
from .options import Options, session_options

if TYPE_CHECKING:
    from ...model_source import ModelSource
    from ...tensor import Tensor

__all__ = ["RowMemory", "SessionRows", "UnchangedFile", "may_split", "start_one_thread"]


def may_split(options: Options) -> bool:
    """Whether the threads are the runtime's choice, so that they may be used otherwise."""
    return (
        options.split_batches
        and not options.threads
        and not options.inter_op_threads
        and options.execution_mode == "sequential"
        and not options.profiling
        and not any(key.startswith("session.intra_op") for key in options.session_config)
    )


class UnchangedFile:
    """The state of a model's file when it was loaded, since a second session has to be of the same model."""

    def __init__(self, model: ModelSource) -> None:
        path = model.path
        self._name = str(model)
        self._files = [] if path is None else [
            path, path.with_name(f"{path.name}.data"), path.with_suffix(".data"), path.with_name(f"{path.name}_data"),
        ]  # fmt: skip
        self._states = self._look()

    def _look(self) -> list[tuple[int, int, int] | None]:
        states: list[tuple[int, int, int] | None] = []
        for file in self._files:
            try:
                found = file.stat()
            except OSError:
                states.append(None)
            else:
                states.append((found.st_ino, found.st_size, found.st_mtime_ns))
        return states

    def check(self) -> None:
        """Raises UnsupportedModelError where it is another one now."""
        if self._look() != self._states:
            raise UnsupportedModelError(f"{self._name!r} has changed since it was loaded; load it again")


def start_one_thread(
    model: ModelSource,
    passes: Sequence[Any],
    options: Options,
    custom_ops: Any,
    device: Any,
    providers: tuple[str, dict[str, str]],
    unchanged: UnchangedFile,
) -> Any:
    """A session of a model that runs on the calling threads.

    Raises:
        UnsupportedModelError: the model's file has changed.
    """
    chosen = session_options(msgspec.structs.replace(options, threads=1))
    if custom_ops is not None:
        register_operators(chosen, custom_ops, device)
    content = prepared_model(model, passes) or model.content
    if content is not None:
        session = ort.InferenceSession(content, chosen, providers=[providers])
    else:
        with private_copy(model) as path:
            session = ort.InferenceSession(path, chosen, providers=[providers])
    unchanged.check()  # last: whatever was read is what was loaded first
    session.disable_fallback()
    return session


class RowMemory:
    """Memory for outputs of unknown sizes, which the runtime allocates where a batch runs whole."""

    def __init__(self) -> None:
        self._arrays: dict[str, Any] = {}

    def lend(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        """Makes an output one of this shape, in memory that rows can be written to."""
        array, size = self._arrays.get(name), math.prod(shape)
        if array is None or array.size < size:
            array = self._arrays[name] = np.empty(size, tensor.dtype)
        if tensor._lender is not array or tensor.shape != shape:
            tensor._look_at(array.ctypes.data, shape, lender=array)


class SessionRows:
    """See `RowRunner`. Each row is bound once, as long as the tensors stay where they are.

    Args:
        session: of one thread.
    """

    def __init__(self, session: Any) -> None:
        self._session = self._whole = session
        self._rows: list[Any] = []
        self._rest: Any = None
        self._bound: tuple[Any, ...] = ()  # where the rows lie

    def place(
        self, inputs: Sequence[tuple[str, Tensor]], outputs: Sequence[tuple[str, Tensor]], split: int, whole: Any
    ) -> None:
        self._whole = whole
        batch = inputs[0][1].shape[0]
        sides = (
            [(name, tensor, tensor.host_ptr()) for name, tensor in inputs],
            [(name, tensor, tensor.host_ptr(read=False, write=True)) for name, tensor in outputs],
        )
        bound = tuple((name, tensor.shape[1:], address) for side in sides for name, tensor, address in side)
        if bound != self._bound:
            self._rows, self._bound = [], bound
        self._rows += [self._binding(self._session, sides, row, 1) for row in range(len(self._rows), split)]
        self._rest = self._binding(whole, sides, split, batch - split) if split < batch else None

    def _binding(self, session: Any, sides: Any, first: int, count: int) -> Any:
        """A binding of rows."""
        binding = session.io_binding()
        for tensors, bind in zip(sides, (binding.bind_input, binding.bind_output), strict=True):
            for name, tensor, address in tensors:
                shape, step = tensor.shape, tensor.nbytes // tensor.shape[0]
                bind(name, "cpu", 0, tensor.dtype, (count, *shape[1:]), address + first * step)
        return binding

    def run_row(self, row: int, worker: int) -> None:
        _run(self._session, self._rows[row])

    def run_rest(self) -> None:
        _run(self._whole, self._rest)


def _run(session: Any, binding: Any) -> None:
    try:
        session.run_with_iobinding(binding)
    except Exception as error:
        if "computed output shape" in str(error):
            raise RowShapesError from None
        raise
