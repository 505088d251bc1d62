"""The CUDA graphs of a session."""

from __future__ import annotations

import threading
from typing import Any

import onnxruntime as ort

__all__ = ["CudaGraphs"]

#: CUDA graphs that a session makes, over all its clones; later shapes and addresses run without.
GRAPHS = 64


class CudaGraphs:
    """The graphs that a session has captured. The runtime knows a graph by a number, which each run has to give.

    Without a number all runs replay the first graph, which reads and writes where that run did.
    """

    def __init__(self) -> None:
        #: Held through a run, and wherever else something is queued, by one thread at a time: a graph that is captured
        #: takes in whatever is queued on the session's only stream meanwhile.
        self.guard = threading.RLock()
        self._made: dict[tuple[Any, ...], Any] = {}

    def options_for(self, memory: tuple[Any, ...]) -> Any:
        """The options of runs that read and write this memory. An empty tuple is a run without a graph.

        The runtime frees no graph before the session ends, so their number is limited.
        """
        result = self._made.get(memory)
        if result is None:
            captured = bool(memory) and len(self._made) < GRAPHS
            result = ort.RunOptions()
            result.add_run_config_entry("gpu_graph_id", str(len(self._made) + 1) if captured else "-1")
            if captured:
                self._made[memory] = result
        return result
