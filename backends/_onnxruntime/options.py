"""The options of the backend, and the session options made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import onnxruntime as ort

from ...core.options import BackendOptions, Count
from ...core.processors import runtime_threads

__all__ = ["Options", "session_options"]

_STOP_SPINNING = "session.force_spinning_stop"
_OPTIMIZATION = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class Options(BackendOptions, frozen=True, kw_only=True):
    """The options of `load(..., backend="onnxruntime", **options)`.

    Attributes:
        threads: threads within an operator; 0 is one for each processor that the process may use. With 0, pipelines and
            calls with a list of images also use a second session of one thread, with its own weights, in parallel.
        inter_op_threads: threads across operators, with `execution_mode="parallel"`; 0 is the runtime's choice.
        execution_mode: whether independent operators run in parallel.
        graph_optimization: the level of graph optimisation on loading.
        allow_spinning: threads that wait within a run spin for a while: lower latency, and a busy processor. They stop
            at the end of the run, unless `session_config` sets `session.force_spinning_stop` to "0".
        provider_options: options of the execution provider, passed on unchanged.
        session_config: the session's configuration entries, passed on unchanged.
        fp16_keep: with precision="fp16" of an FP32 model: names of nodes that stay FP32
            (`infersdk.graph.fp16_parity.find_fp16_loss` finds them).
        cuda_graph: on an NVIDIA GPU, runs are captured and replayed as CUDA graphs, one for each set of shapes and
            addresses. Clones then run one at a time. No effect with outputs whose shapes depend on the data.
        memory_limit: on an NVIDIA GPU, the maximum device memory of the model and its clones together, as `"2GB"`. A
            quarter, and at least the tensors of `concurrency` instances, is for tensors and wrappers. The runtime's
            arena, for weights and workspace, has the rest, or `gpu_mem_limit` in `provider_options`.
        allow_cpu_nodes: whether nodes may run on the processor if the provider of another device does not take them.
            False raises an error with their names, True logs them. None is True on "cuda", without the log, else False.
        provider_library: the library of an execution provider that is in no Python package.
        profiling: the session measures each node, for `infersdk.layers`; runs take slightly longer.
    """

    threads: Count = 0
    inter_op_threads: Count = 0
    execution_mode: Literal["sequential", "parallel"] = "sequential"
    graph_optimization: Literal["disabled", "basic", "extended", "all"] = "all"
    allow_spinning: bool = True
    provider_options: dict[str, str | int | bool] = {}
    session_config: dict[str, str] = {}
    fp16_keep: list[str] = []
    cuda_graph: bool = False
    memory_limit: str | int | None = None
    allow_cpu_nodes: bool | None = None
    provider_library: str | None = None
    profiling: bool = False


def session_options(options: Options, profile_folder: Path | None = None) -> Any:
    """A new `onnxruntime.SessionOptions`.

    Args:
        profile_folder: the folder of the profiler's file; None does not profile.
    """
    result = ort.SessionOptions()
    result.log_severity_level = 4  # fatal: errors come as exceptions, and a library does not print
    result.intra_op_num_threads = runtime_threads(options.threads)
    result.inter_op_num_threads = options.inter_op_threads
    result.graph_optimization_level = _OPTIMIZATION[options.graph_optimization]
    if options.execution_mode == "parallel":
        result.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    if not options.allow_spinning:
        result.add_session_config_entry("session.intra_op.allow_spinning", "0")
    elif _STOP_SPINNING not in options.session_config:
        # Otherwise each thread keeps a core busy for 20 ms after a run.
        result.add_session_config_entry(_STOP_SPINNING, "1")
    if profile_folder is not None:
        result.enable_profiling = True
        result.profile_file_prefix = str(profile_folder / "run")
    for key, value in options.session_config.items():
        result.add_session_config_entry(key, value)
    return result
