"""The options of the backend, and the session options that they become."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import onnxruntime as ort

from ...options import BackendOptions, Count

__all__ = ["Options", "session_options"]

_STOP_SPINNING = "session.force_spinning_stop"
_OPTIMIZATION = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class Options(BackendOptions, frozen=True, kw_only=True):
    """What `load(..., backend="onnxruntime", **options)` takes.

    Attributes:
        threads: threads within an operator; 0 is one a core.
        inter_op_threads: threads across operators, with `execution_mode="parallel"`; 0 is the runtime's choice.
        execution_mode: operators one after another, or side by side where the graph allows it.
        graph_optimization: how far the graph is rewritten on loading.
        allow_spinning: threads that wait for others within a run spin for a while: lower latency, at the cost of a busy
            processor. They stop at the end of the run, unless `session_config` sets `session.force_spinning_stop` to
            "0": then they keep cores busy for tens of milliseconds more.
        split_batches: on the processor, with `threads=0`: rows of a batch that do not depend on each other (those of
            pipelines and model wrappers) run one by one, one on each core, where the first batches show that this takes
            less time. A second session of one thread does that, with weights of its own.
        provider_options: passed on to the execution provider unchanged.
        session_config: the session's configuration entries, unchanged.
        fp16_keep: with precision="fp16" of an FP32 model: names of nodes that stay FP32
            (`infersdk.graph.fp16_parity.find_fp16_loss` finds which should).
        cuda_graph: on an NVIDIA GPU, runs are captured and replayed as CUDA graphs, one for each set of shapes and
            addresses. It has no effect where an output's shape does not follow from the inputs'. Clones run one at a
            time then.
        memory_limit: on an NVIDIA GPU, the most memory of the device that the model and its clones hold together, as
            `"2GB"`. A quarter of it, and at least the tensors of `concurrency` instances, is for the tensors of
            instances and what a wrapper holds there; the runtime's arena, which takes the weights and the workspace,
            has the rest, or what `provider_options` gives as `gpu_mem_limit`.
        profiling: the session measures each node, for `infersdk.layers`; runs take a little longer.
    """

    threads: Count = 0
    inter_op_threads: Count = 0
    execution_mode: Literal["sequential", "parallel"] = "sequential"
    graph_optimization: Literal["disabled", "basic", "extended", "all"] = "all"
    allow_spinning: bool = True
    split_batches: bool = True
    provider_options: dict[str, str | int | bool] = {}
    session_config: dict[str, str] = {}
    fp16_keep: list[str] = []
    cuda_graph: bool = False
    memory_limit: str | int | None = None
    profiling: bool = False


def session_options(options: Options, profile_folder: Path | None = None) -> Any:
    """A new `onnxruntime.SessionOptions`.

    Args:
        profile_folder: where the profiler writes; None does not profile.
    """
    result = ort.SessionOptions()
    result.log_severity_level = 4  # fatal: errors come as exceptions, and a library does not print
    result.intra_op_num_threads = options.threads
    result.inter_op_num_threads = options.inter_op_threads
    result.graph_optimization_level = _OPTIMIZATION[options.graph_optimization]
    if options.execution_mode == "parallel":
        result.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    if not options.allow_spinning:
        result.add_session_config_entry("session.intra_op.allow_spinning", "0")
    elif _STOP_SPINNING not in options.session_config:
        # Else a thread keeps a core busy for 20 ms after each run, which other runs and preprocessing need.
        result.add_session_config_entry(_STOP_SPINNING, "1")
    if profile_folder is not None:
        result.enable_profiling = True
        result.profile_file_prefix = str(profile_folder / "run")
    for key, value in options.session_config.items():
        result.add_session_config_entry(key, value)
    return result
