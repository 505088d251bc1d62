"""How the batches of a wrapper run: on the host, or on a CUDA device.

Executors know a `Preprocessor` and functions for what follows the network (`ModelStages`); they know nothing of model
families. `make_executor()` is the one place that chooses.
"""

from __future__ import annotations

from .executor import BatchItem, DevicePostprocess, Executor, HostOutputs, ModelStages, OutputRow, Parameters, Timings
from .executor_pool import ExecutorPool, Lease
from .following import FollowingBuffer, make_executor
from .placement import PreprocessPlacement
from .run_order import RunOrder

__all__ = [
    "BatchItem",
    "DevicePostprocess",
    "Executor",
    "ExecutorPool",
    "FollowingBuffer",
    "HostOutputs",
    "Lease",
    "ModelStages",
    "OutputRow",
    "Parameters",
    "PreprocessPlacement",
    "RunOrder",
    "Timings",
    "make_executor",
]
