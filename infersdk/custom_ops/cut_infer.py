"""CutInfer: runs a model that is divided at its custom nodes into segments on a backend, and kernels.

Tensors between the parts are not copied. On a GPU, all parts are queued on one stream.
"""

from __future__ import annotations

import dataclasses
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..core.executed_layers import ExecutedLayer, LayerProfile, LayerTensor, ReportsLayers, seconds_of
from ..core.formats import FORMATS
from ..core.model_source import ModelLike, ModelSource
from ..core.stream import Stream
from ..core.target import describe_layers, keeps_precision
from ..core.tensor import Tensor, new_tensor
from ..core.tensor_spec import TensorSpec
from ..core.text import logger
from ..errors import ConfigError, ModelFormatError, PrecisionUnavailableError
from ..graph.files import model_bytes, read_model, write_large
from ..graph.info import tensor_spec
from ..graph.passes import NameNodes, ToFloat16, loading_passes
from ..graph.precision import main_precision
from ..infer import Infer, Scheduling
from .cutting import KernelCall, Plan, Segment, cut
from .native import Node, native_op

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["CutInfer"]

_log = logger("infersdk.custom_ops")
_PRECISIONS = {"float32": "fp32", "float16": "fp16", "float64": "fp64", "int8": "int8", "uint8": "int8"}
_TIMING = (
    "The segments and the kernels of custom operators ran one by one; the time of a kernel is measured on the host, "
    "which waits for it."
)


class CutInfer(Infer):
    """A model whose segments between custom nodes run on a backend, of class `kind`. Created by `infersdk.load()`.

    Attributes:
        plan: the segments and kernels in order; `describe()` prints them.
    """

    plan: Plan

    def __init__(self, model: ModelLike, kind: type[Infer], **arguments: Any) -> None:
        self._kind = kind
        self.backend, self.declaration = kind.backend, kind.declaration  # type: ignore[misc]
        self._own: dict[str, Tensor] = {}  # the values that it has created
        self._own_stream: Stream | None = None
        super().__init__(model, **arguments)

    # ---- loading ----

    def _load(self) -> None:
        given = self.model.format
        if given is not None and given is not FORMATS["onnx"]:
            raise ModelFormatError(
                f"{str(self.model)!r} is {given.title}, and only an ONNX model can be divided at its custom operators; "
                "load the ONNX model that it was made from, or omit custom_ops if it has no custom operators"
            )
        graph = read_model(self.model)
        if getattr(self.options, "profiling", False):
            NameNodes().apply(graph)  # segments report layers by the names in the whole model
        segment_precision = self._prepare(graph)
        self.input_specs = tuple(tensor_spec(value) for value in graph.graph.inputs if not value.is_initializer())
        self.metadata = MappingProxyType(dict(graph.metadata_props))
        outputs = list(graph.graph.outputs)
        self.plan = cut(graph, self.custom_ops, self.model.name)
        self.output_specs = tuple(tensor_spec(value) for value in outputs)
        self._check_options()
        folder = tempfile.TemporaryDirectory(prefix="infersdk-")
        weakref.finalize(self, folder.cleanup)
        self._segments: list[Infer] = []
        #: The steps of the plan, each with its runner: a Segment with an Infer, a KernelCall with a Node.
        self._parts: list[tuple[Any, Infer | Node]] = []
        try:
            for step in self.plan.steps:
                if isinstance(step, KernelCall):
                    native = native_op(type(step.op), step.signature, self._device)
                    self._parts.append((step, Node(step.op, native, step.name)))
                    continue
                segment = self._load_segment(step, len(self._segments), Path(folder.name), segment_precision)
                self._segments.append(segment)
                self._parts.append((step, segment))
        except BaseException:
            self._close()
            raise
        limits = [segment.max_batch for segment in self._segments if segment.max_batch is not None]
        self.max_batch = self.max_batch or min(limits, default=None)
        self._share_stream()
        self._check_precision()
        for line in self._description():  # a line break within a message is escaped
            _log.info("%s", line)

    def _prepare(self, graph: ir.Model) -> str | None:
        """Converts the whole model if the backend would convert it on loading; returns the precision for segments.

        Values at cuts then have the types of the operators.
        """
        wanted = self._requested_precision
        settings: dict[str, Any] = {
            "keep_nodes": getattr(self.options, "fp16_keep", []),
            "keep_io": not getattr(self.options, "half_io", False),
        }
        for one in loading_passes(self._kind.backend, self._device.kind, wanted, **settings):
            if isinstance(one, ToFloat16):
                one.apply(graph)
                return None
        # A segment may have no INT8 layer, so INT8 is checked for all segments together.
        return None if wanted == "int8" else wanted

    def _check_options(self) -> None:
        known = {name for segment in self.plan.segments for name in segment.inputs}
        for name in getattr(self.options, "profiles", {}):
            if name not in known:
                raise ConfigError(
                    f"profiles has {name!r}, and no segment of {self.model.name} has that input; the inputs are "
                    f"{', '.join(sorted(known))}"
                )

    def _load_segment(self, segment: Segment, index: int, folder: Path, precision: str | None) -> Infer:
        name = f"{self.model.stem}-segment{index}.onnx"
        source: ModelLike
        if self.model.path is None:
            source = ModelSource(None, model_bytes(segment.model), name=name, origin=self.model.origin)
        else:
            source = folder / name
            write_large(segment.model, source)
        return self._kind(
            source, device=self._device, precision=precision, max_batch=self._segment_batch(segment),
            options=self._segment_options(segment, index),
        )  # fmt: skip

    def _segment_batch(self, segment: Segment) -> int | None:
        """`max_batch`, or None if the first dimensions of the inputs are fixed or are not the batch of the model.

        A backend that prepares a model for one largest batch gets `max_batch` for all free first dimensions.
        """
        specs = map(tensor_spec, segment.model.graph.inputs)
        free = {spec.shape[0] for spec in specs if spec.has_free_batch}
        batch = {spec.shape[0] for spec in self.input_specs if spec.has_free_batch}
        prepares = self._kind.declaration.default_max_batch is not None
        return self.max_batch if free and (prepares or free <= batch) else None

    def _segment_options(self, segment: Segment, index: int) -> Any:
        changes: dict[str, Any] = {}
        if hasattr(self.options, "profiles"):
            changes["profiles"] = {n: r for n, r in self.options.profiles.items() if n in segment.inputs}
        if getattr(self.options, "fp16_keep", None):
            changes["fp16_keep"] = []  # the whole model is converted already
        if getattr(self.options, "progress", None) is not None:
            changes["progress"] = _share(self.options.progress, index, len(self.plan.segments))
        return msgspec.structs.replace(self.options, **changes) if changes else self.options

    def _share_stream(self) -> None:
        """Runs all parts on one stream if the backend supports it; otherwise tensors synchronise the streams."""
        self.stream = next((segment.stream for segment in self._segments if segment.stream is not None), None)
        if self.stream is not None and all(hasattr(segment, "use_stream") for segment in self._segments):
            self.stream = self._own_stream = Stream(self._device)
            for segment in self._segments:
                segment.use_stream(self.stream)  # type: ignore[attr-defined]
        elif self.stream is None and self._device.ordinal >= 0:
            self.stream = self._own_stream = Stream(self._device)
        parts = [segment.scheduling for segment in self._segments]
        self.scheduling = Scheduling(
            concurrency=min((part.concurrency for part in parts), default=1),
            serializes_runs=self.stream is not None,
            warm_up_runs=max((part.warm_up_runs for part in parts), default=1),
            shares_stream=self._own_stream is None and any(part.shares_stream for part in parts),
            bucket_batch=lambda n: max((part.bucket_batch(n) for part in parts), default=n),
        )

    def _check_precision(self) -> None:
        wanted = self._requested_precision
        if wanted is not None and not keeps_precision(wanted, self.precision, self.layer_precisions):
            raise PrecisionUnavailableError(
                f"precision {wanted!r}: {self.backend} would run the segments of {self.model.name} in {self.precision} "
                f"on {self.device} ({describe_layers(self.layer_precisions)}); omit precision"
            )

    # ---- tensors ----

    def _create_tensors(self) -> None:
        """Creates one tensor per value and binds the parts that compute and use it."""
        super()._create_tensors()
        self._values: dict[str, Tensor] = dict(self._inputs)
        for name, array in self.plan.weights.items():
            self._values[name] = self._own[name] = Tensor(array.shape, array.dtype, self._device)
            self._own[name].numpy(writable=True)[...] = array
        for step, part in self._parts:
            if isinstance(part, Node):
                for name, dtype, shape in zip(step.outputs, step.signature.outputs, step.shapes, strict=True):
                    spec = TensorSpec(name, np.dtype(dtype), shape)
                    self._values[name] = self._own[name] = new_tensor(spec, self._device, self.max_batch)
                continue
            for name in step.inputs:
                part.bind(name, self._values[name])
            self._values.update(part.outputs)
        for name in self._outputs:
            if name in self._inputs or name in self.plan.weights:
                continue  # copied after each run
            self._outputs[name].close()
            self._outputs[name] = self._values[name]
            self._lent.add(name)

    def bind(self, name: str, tensor: Tensor) -> None:
        super().bind(name, tensor)
        self._values[name] = tensor
        for step, part in self._parts:
            if isinstance(part, Infer) and name in (*step.inputs, *step.outputs):
                part.bind(name, tensor)

    # ---- running ----

    def _bind(self) -> None:
        pass  # segments detect changes of shapes and addresses

    def _enqueue(self) -> None:
        for step, part in self._parts:
            if isinstance(part, Node):
                self._run_kernel(step, part)
            else:
                part.enqueue()
        for name in self._outputs:
            if name in self._inputs or name in self.plan.weights:
                source = self._values[name]
                self._outputs[name].resize(source.shape).copy_from(source)

    def _run_kernel(self, call: KernelCall, node: Node) -> None:
        inputs = [self._values[name] for name in call.inputs]
        outputs = [self._values[name] for name in call.outputs]
        for tensor, shape in zip(outputs, node.shapes([tensor.shape for tensor in inputs]), strict=True):
            if tensor.shape != shape:
                tensor.resize(shape)
        if self.stream is None:
            node.run_arrays([t.numpy() for t in inputs], [t.numpy(writable=True) for t in outputs])
            return
        read = [(tensor.device_ptr(stream=self.stream), tensor.shape) for tensor in inputs]
        written = [(tensor.device_ptr(read=False, write=True, stream=self.stream), tensor.shape) for tensor in outputs]
        node.run(read, written, self.stream.handle)

    def _wait(self) -> None:
        for segment in self._segments:
            segment.wait()  # raises errors of the segment
        super()._wait()

    # ---- the rest ----

    def profile_layers(self, runs: int) -> LayerProfile:
        """See `infersdk.core.executed_layers.ReportsLayers`. Each part runs on the contents that its inputs have."""
        self.forward()
        walls = seconds_of(self.forward, runs)
        parts, timings, memory = [], [], Counter[str]()
        for step, part in self._parts:
            if isinstance(part, Node):
                parts.append([self._kernel_layer(step, part, runs)])
                continue
            if not isinstance(part, ReportsLayers):
                raise ConfigError(f"backend {self.backend!r} does not report the layers that it executes")
            result = part.profile_layers(runs)
            parts.append(list(result.layers))
            timings.append(result.timing)
            memory.update(result.memory)
        timing = " ".join([*dict.fromkeys(timings), _TIMING])
        return LayerProfile(tuple(_named_apart(parts)), walls, timing, memory=dict(memory))

    def _kernel_layer(self, call: KernelCall, node: Node, runs: int) -> ExecutedLayer:
        def run() -> None:
            self._run_kernel(call, node)
            self._wait()

        inputs, outputs = (
            tuple(LayerTensor(name, self._values[name].shape, str(self._values[name].dtype)) for name in side)
            for side in (call.inputs, call.outputs)
        )
        dtype = (*call.signature.inputs, *call.signature.outputs)[0]
        return ExecutedLayer(
            name=call.name, kind=call.op.title(), inputs=inputs, outputs=outputs, sources=(call.name, *call.outputs),
            kernel="custom operator", precision=_PRECISIONS.get(dtype, dtype), device=self.device,
            seconds=sum(seconds_of(run, runs)) / runs, output_bytes=sum(self._values[n].nbytes for n in call.outputs),
        )  # fmt: skip

    def describe(self) -> str:
        """Lists the segments, with their nodes and values, and the kernels."""
        return "\n".join(self._description())

    def _description(self) -> list[str]:
        plan, index, lines = self.plan, 0, list[str]()
        for step in plan.steps:
            arrow = f"{', '.join(step.inputs)} -> {', '.join(step.outputs)}"
            if isinstance(step, Segment):
                lines.append(f"  segment {index} on {self.backend}, {step.nodes} nodes: {arrow}")
                index += 1
            else:
                lines.append(f"  kernel of {step.op.title()}, node {step.name}: {arrow}")
        counts = f"{len(plan.kernels)} custom nodes into {len(plan.segments)} segments on {self.backend}, {self.device}"
        return [f"{self.model.name} is divided at {counts}:", *lines]

    @property
    def precision(self) -> str:
        return main_precision(self.layer_precisions)

    @property
    def layer_precisions(self) -> Mapping[str, int]:
        """The sums over all segments."""
        total: Counter[str] = Counter()
        for segment in self._segments:
            total.update(segment.layer_precisions)
        return MappingProxyType(dict(total))

    def _clone(self, twin: CutInfer) -> None:
        twin._own, twin._own_stream = {}, None
        twin._parts = [(step, part.clone() if isinstance(part, Infer) else part) for step, part in self._parts]
        twin._segments = [part for _, part in twin._parts if isinstance(part, Infer)]
        twin._share_stream()

    def _close(self) -> None:
        for segment in self._segments:
            segment.close()
        for tensor in self._own.values():
            tensor.close()
        if self._own_stream is not None:
            self._own_stream.close()


def _share(progress: Callable[[str, float], None], index: int, count: int) -> Callable[[str, float], None]:
    """Converts the progress of one segment to the progress of all."""
    return lambda phase, done: progress(f"segment {index + 1} of {count}: {phase}", (index + done) / count)


def _named_apart(parts: Sequence[Sequence[ExecutedLayer]]) -> list[ExecutedLayer]:
    """All layers. Names that several parts have get the number of the part as a prefix."""
    count = Counter(layer.name for part in parts for layer in part)
    return [
        layer if count[layer.name] == 1 else dataclasses.replace(layer, name=f"part{number}/{layer.name}")
        for number, part in enumerate(parts)
        for layer in part
    ]
