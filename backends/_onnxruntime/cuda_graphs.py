"""The CUDA graphs of a session."""

from __future__ import annotations

import threading
from typing import Any

import onnxruntime as ort

__all__ = ["CudaGraphs"]

#: Maximum number of CUDA graphs of a session and its clones. Later shapes and addresses run without one.
GRAPHS = 64


class CudaGraphs:
    """The graphs that a session has captured. Each run passes the number of its graph to the runtime.

    Without a number all runs replay the first graph, with its addresses.
    """

    def __init__(self) -> None:
        #: Held while a thread runs the session or queues other work: a capture records all work on the stream.
        self.guard = threading.RLock()
        self._made: dict[tuple[Any, ...], Any] = {}

    def options_for(self, memory: tuple[Any, ...]) -> Any:
        """The options of runs that read and write this memory; an empty tuple is a run without a graph.

        Their number is limited, since the runtime frees graphs only with the session.
        """
        result = self._made.get(memory)
        if result is None:
            captured = bool(memory) and len(self._made) < GRAPHS
            result = ort.RunOptions()
            result.add_run_config_entry("gpu_graph_id", str(len(self._made) + 1) if captured else "-1")
            if captured:
                self._made[memory] = result
        return result
