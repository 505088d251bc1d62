"""CutInfer: a model that is cut at its custom nodes. Segments on a backend and kernels run in turn.

The tensors between them are handed on where they lie. On a GPU all of it is queued on one stream, without waiting.
"""

from __future__ import annotations

import contextlib
import tempfile
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
import numpy as np

from .._text import logger
from ..errors import ConfigError, PrecisionUnavailableError
from ..graph.files import model_bytes, read_model, write_model
from ..graph.passes import NameNodes, ToFloat16, loading_passes
from ..graph.precision import main_precision
from ..infer import BackendInfo, Infer, new_tensor
from ..model_source import ModelLike, ModelSource
from ..precision import describe_layers, keeps_precision
from ..stream import CudaGraph, Stream
from ..tensor import Tensor
from ..tensor_spec import TensorSpec
from .cut_profile import profile_parts
from .cutting import KernelCall, Plan, Segment, cut
from .native import Node, native_op

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..device import Device
    from ..executed_layers import LayerProfile
    from .operator_set import OperatorSet

__all__ = ["CutInfer"]

_log = logger("infersdk.custom_ops")

#: Files of a segment that are larger keep their weights in a file of their own.
_LARGE = 1 << 30
#: CUDA graphs that a model keeps: one for each set of shapes and addresses.
GRAPHS = 16


@runtime_checkable
class Capturable(Protocol):
    """A backend whose runs can be queued on a stream that is given, and so become part of one CUDA graph."""

    def use_stream(self, stream: Stream) -> None: ...

    def place_run(self) -> tuple[Any, ...] | None: ...

    def queue_run(self) -> None: ...


class CutInfer(Infer):
    """A model of which a backend runs the segments between custom nodes. Made by `infersdk.load()`.

    Attributes:
        plan: what is run, in order; `describe()` is it in words.

    Args:
        model: the ONNX file.
        kind: the class of the backend.
        device, precision, max_batch, options: for the backend.
        custom_ops: the operators that the model uses.
    """

    plan: Plan

    def __init__(
        self,
        model: ModelLike,
        kind: type[Infer],
        *,
        device: Device,
        precision: str | None,
        max_batch: int | None,
        options: Any,
        custom_ops: OperatorSet,
    ) -> None:
        self._kind = kind
        self.backend = kind.backend  # type: ignore[misc]
        self._own: list[Tensor] = []
        super().__init__(
            model, device=device, precision=precision, max_batch=max_batch, options=options, custom_ops=custom_ops
        )

    @classmethod
    def probe(cls) -> BackendInfo:
        """It is no backend by itself."""
        return BackendInfo("", ())

    # ---- loading ----

    def _load(self) -> None:
        graph = read_model(self.model)
        if getattr(self.options, "profiling", False):
            NameNodes().apply(graph)  # segments report their layers by the names of the whole
        segment_precision = self._prepare(graph)
        self.input_specs = tuple(_spec(value) for value in graph.graph.inputs if not value.is_initializer())
        self.metadata = MappingProxyType(dict(graph.metadata_props))
        outputs = list(graph.graph.outputs)
        self.plan = cut(graph, self.custom_ops, self.model.name)
        self.output_specs = tuple(_spec(value) for value in outputs)
        self._check_options()
        self._nodes = [self._node(call) for call in self.plan.kernels]
        folder = tempfile.TemporaryDirectory(prefix="infersdk-")
        weakref.finalize(self, folder.cleanup)
        self._segments: list[Infer] = []
        try:
            for index, segment in enumerate(self.plan.segments):
                self._segments.append(self._load_segment(segment, index, Path(folder.name), segment_precision))
        except BaseException:
            self._close()
            raise
        limits = [segment.max_batch for segment in self._segments if segment.max_batch is not None]
        self.max_batch = min(limits, default=self.max_batch)
        self._share_stream()
        self._check_precision()
        _log.info("%s", self.describe())

    def _prepare(self, graph: ir.Model) -> str | None:
        """Converts the whole model where the backend would convert it on loading; returns what the segments are asked
        for. The values at the cuts are of the types that the operators take then.
        """
        wanted = self._requested_precision
        settings: dict[str, Any] = {
            "keep_nodes": getattr(self.options, "fp16_keep", []),
            "keep_io": not getattr(self.options, "half_io", False),
        }
        for one in loading_passes(self._kind.backend, self._device.kind, wanted, **settings):
            if isinstance(one, ToFloat16):
                from .onnx_schema import registered

                with registered(*self.custom_ops):
                    one.apply(graph)
                return None
        # A segment may have no layer of that precision: it is checked for all of them together.
        return None if wanted == "int8" else wanted

    def _check_options(self) -> None:
        known = {name for segment in self.plan.segments for name in segment.inputs}
        for name in getattr(self.options, "profiles", {}):
            if name not in known:
                raise ConfigError(
                    f"profiles has {name!r}, and no segment of {self.model.name} has that input; there are "
                    f"{', '.join(sorted(known))}"
                )

    def _load_segment(self, segment: Segment, index: int, folder: Path, precision: str | None) -> Infer:
        name = f"{self.model.stem}-segment{index}.onnx"
        source: ModelLike
        if self.model.path is None:
            source = ModelSource(None, model_bytes(segment.model), name=name, origin=self.model.origin)
        else:
            source = folder / name
            weights = (v.const_value.nbytes for v in segment.model.graph.initializers.values() if v.const_value)
            write_model(segment.model, source, external_data=f"{name}.data" if sum(weights) > _LARGE else None)
        return self._kind(
            source, device=self._device, precision=precision, max_batch=self.max_batch,
            options=self._segment_options(segment, index),
        )  # fmt: skip

    def _segment_options(self, segment: Segment, index: int) -> Any:
        changes: dict[str, Any] = {}
        if hasattr(self.options, "profiles"):
            changes["profiles"] = {n: r for n, r in self.options.profiles.items() if n in segment.inputs}
        if getattr(self.options, "fp16_keep", None):
            changes["fp16_keep"] = []  # the whole model is converted already
        if self._captures:
            changes["cuda_graph"] = False  # one graph of all is captured instead
        if getattr(self.options, "progress", None) is not None:
            changes["progress"] = _share(self.options.progress, index, len(self.plan.segments))
        return msgspec.structs.replace(self.options, **changes) if changes else self.options

    def _share_stream(self) -> None:
        """All on one stream, where the backend can be given one; otherwise tensors order the streams by events."""
        self.stream = next((segment.stream for segment in self._segments if segment.stream is not None), None)
        self._own_stream: Stream | None = None
        if self.stream is not None and all(isinstance(segment, Capturable) for segment in self._segments):
            self.stream = self._own_stream = Stream(self._device)
            for segment in self._segments:
                segment.use_stream(self.stream)  # type: ignore[attr-defined]
        elif self.stream is None and self._device.ordinal >= 0:
            self.stream = self._own_stream = Stream(self._device)
        self.shares_stream = self._own_stream is None and any(segment.shares_stream for segment in self._segments)
        self._graphs: OrderedDict[tuple[Any, ...], CudaGraph | None] = OrderedDict()

    def _node(self, call: KernelCall) -> Node:
        return Node(call.op, native_op(type(call.op), call.signature, self._device), call.name)

    def _check_precision(self) -> None:
        wanted = self._requested_precision
        if wanted is not None and not keeps_precision(wanted, self.precision, self.layer_precisions):
            raise PrecisionUnavailableError(
                f"precision {wanted!r}: {self.backend} would run the segments of {self.model.name} in {self.precision} "
                f"on {self.device} ({describe_layers(self.layer_precisions)}); leave precision out"
            )

    # ---- tensors ----

    def _create_tensors(self) -> None:
        """Each value has one tensor: the part that computes it and the parts that use it are bound to it."""
        super()._create_tensors()
        self._values: dict[str, Tensor] = dict(self._inputs)
        for name, array in self.plan.weights.items():
            self._values[name] = self._owned(Tensor(array.shape, array.dtype, self._device))
            self._values[name].numpy(writable=True)[...] = array
        segments, calls = iter(self._segments), iter(self.plan.kernels)
        for step in self.plan.steps:
            if isinstance(step, KernelCall):
                call = next(calls)
                for name, dtype, shape in zip(call.outputs, call.signature.outputs, call.shapes, strict=True):
                    self._values[name] = self._owned(
                        new_tensor(TensorSpec(name, np.dtype(dtype), shape), self._device, self.max_batch)
                    )
                continue
            segment = next(segments)
            for name in step.inputs:
                segment.bind(name, self._values[name])
            self._values.update(segment.outputs)
        for name in self._outputs:
            if name in self._inputs or name in self.plan.weights:
                continue  # handed through: a copy
            self._outputs[name].close()
            self._outputs[name] = self._values[name]
            self._lent.add(name)

    def _owned(self, tensor: Tensor) -> Tensor:
        self._own.append(tensor)
        return tensor

    def bind(self, name: str, tensor: Tensor) -> None:
        super().bind(name, tensor)
        self._values[name] = tensor
        segments = iter(self._segments)
        for step in self.plan.steps:
            if isinstance(step, Segment):
                segment = next(segments)
                if name in step.inputs or name in step.outputs:
                    segment.bind(name, tensor)

    # ---- running ----

    def _bind(self) -> None:
        pass  # each segment sees by itself which shapes and addresses have changed

    @property
    def _captures(self) -> bool:
        return bool(getattr(self.options, "cuda_graph", False)) and issubclass(self._kind, Capturable)

    def _enqueue(self) -> None:
        key = self._placed() if self._captures else None
        if key is None:
            self._run_steps()
        elif key not in self._graphs:
            self._graphs[key] = None  # the first run goes as it is: kernels make their state, runtimes compile
            if len(self._graphs) > GRAPHS:
                self._graphs.popitem(last=False)
            self._run_steps()
        else:
            self._replay(key)

    def _placed(self) -> tuple[Any, ...] | None:
        """Sizes and places all values for a run; what a graph is captured with, or None where it cannot be."""
        segments, nodes, key = iter(self._segments), iter(self._nodes), []
        for step in self.plan.steps:
            if isinstance(step, Segment):
                part = next(segments).place_run()  # type: ignore[attr-defined]
                if part is None:
                    return None
                key.append(part)
            else:
                key.append(tuple(self._place_kernel(step, next(nodes))))
        return None if self._copies() else tuple(key)

    def _copies(self) -> list[str]:
        """Outputs that are inputs or weights of the model: they are copied."""
        return [name for name in self._outputs if name in self._inputs or name in self.plan.weights]

    def _replay(self, key: tuple[Any, ...]) -> None:
        assert self.stream is not None
        self._graphs.move_to_end(key)
        graph = self._graphs[key]
        if graph is None:
            with contextlib.ExitStack() as guards:
                for guard in {id(s.capture_guard): s.capture_guard for s in self._segments}.values():  # type: ignore[attr-defined]
                    guards.enter_context(guard)
                graph = self._graphs[key] = CudaGraph(self.stream, lambda: self._queue_all(key))
        graph.launch(self.stream)

    def _queue_all(self, key: tuple[Any, ...]) -> None:
        assert self.stream is not None
        segments, nodes = iter(self._segments), iter(self._nodes)
        for step, part in zip(self.plan.steps, key, strict=True):
            if isinstance(step, Segment):
                next(segments).queue_run()  # type: ignore[attr-defined]
            else:
                count = len(step.inputs)
                next(nodes).run(part[:count], part[count:], self.stream.handle)

    def _run_steps(self) -> None:
        segments, nodes = iter(self._segments), iter(self._nodes)
        for step in self.plan.steps:
            if isinstance(step, Segment):
                next(segments).enqueue()
            else:
                self._run_kernel(step, next(nodes))
        for name in self._copies():
            source = self._values[name]
            self._outputs[name].resize(source.shape).copy_from(source)

    def _run_kernel(self, call: KernelCall, node: Node) -> None:
        if self.stream is not None:
            addresses = self._place_kernel(call, node)
            count = len(call.inputs)
            node.run(addresses[:count], addresses[count:], self.stream.handle)
            return
        inputs, outputs = self._sized(call, node)
        node.run_arrays([t.numpy() for t in inputs], [t.numpy(writable=True) for t in outputs])

    def _sized(self, call: KernelCall, node: Node) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs, and the outputs in the shapes that follow from them."""
        inputs = [self._values[name] for name in call.inputs]
        outputs = [self._values[name] for name in call.outputs]
        for tensor, shape in zip(outputs, node.shapes([tensor.shape for tensor in inputs]), strict=True):
            if tensor.shape != shape:
                tensor.resize(shape)
        return inputs, outputs

    def _place_kernel(self, call: KernelCall, node: Node) -> list[tuple[int, tuple[int, ...]]]:
        """Where a kernel reads and writes on the device, inputs first."""
        inputs, outputs = self._sized(call, node)
        return [
            *((tensor.device_ptr(stream=self.stream), tensor.shape) for tensor in inputs),
            *((tensor.device_ptr(read=False, write=True, stream=self.stream), tensor.shape) for tensor in outputs),
        ]

    def _wait(self) -> None:
        for segment in self._segments:
            segment.wait()  # each says by itself what failed
        super()._wait()

    # ---- the rest ----

    def profile_layers(self, runs: int) -> LayerProfile:
        """See `infersdk.executed_layers.ReportsLayers`."""
        if not getattr(self.options, "profiling", False):
            raise ConfigError("the model was loaded without profiling=True; load it with that option")

        def run_kernel(at: int) -> None:
            self._run_kernel(self.plan.kernels[at], self._nodes[at])
            self._wait()

        self.forward()
        return profile_parts(self, runs, self.plan, self._segments, self._values, run_kernel)

    def describe(self) -> str:
        """What the cutting did: each segment with its nodes and values, and each kernel."""
        plan, index, lines = self.plan, 0, []
        for step in plan.steps:
            arrow = f"{', '.join(step.inputs)} -> {', '.join(step.outputs)}"
            if isinstance(step, Segment):
                lines.append(f"  segment {index} on {self.backend}, {step.nodes} nodes: {arrow}")
                index += 1
            else:
                lines.append(f"  kernel of {step.op.title()}, node {step.name}: {arrow}")
        counts = f"{len(plan.kernels)} custom nodes into {len(plan.segments)} segments on {self.backend}, {self.device}"
        return "\n".join([f"{self.model.name} is cut at {counts}:", *lines])

    @property
    def precision(self) -> str:
        return main_precision(self.layer_precisions)

    @property
    def layer_precisions(self) -> Mapping[str, int]:
        """Those of all segments together."""
        total: Counter[str] = Counter()
        for segment in self._segments:
            total.update(segment.layer_precisions)
        return MappingProxyType(dict(total))

    @property
    def concurrency(self) -> int:
        return min((segment.concurrency for segment in self._segments), default=1)

    def bucket_batch(self, n: int) -> int:
        return max((segment.bucket_batch(n) for segment in self._segments), default=n)

    def _clone(self, twin: CutInfer) -> None:
        twin._own = []
        twin._segments = [segment.clone() for segment in self._segments]
        twin._share_stream()

    def _close(self) -> None:
        getattr(self, "_graphs", {}).clear()
        for segment in self._segments:
            segment.close()
        for tensor in self._own:
            tensor.close()
        if getattr(self, "_own_stream", None) is not None:
            self._own_stream.close()  # type: ignore[union-attr]


def _spec(value: ir.Value) -> TensorSpec:
    shape = () if value.shape is None else value.shape
    dtype = np.dtype(value.dtype.numpy()) if value.dtype is not None else np.dtype(object)
    return TensorSpec(value.name or "", dtype, tuple(dim if isinstance(dim, int) else dim.value for dim in shape))


def _share(progress: Callable[[str, float], None], index: int, count: int) -> Callable[[str, float], None]:
    """The progress of one segment of several, as a part of the whole."""
    return lambda phase, done: progress(f"segment {index + 1} of {count}: {phase}", (index + done) / count)
