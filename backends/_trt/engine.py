"""Engines: files, which are checked before reading, and deserialised engines."""

from __future__ import annotations

import datetime
import hashlib
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...core.cache import Cache, Manifest, key_of, read_manifest, write_blob
from ...core.model_source import ModelLike, ModelSource
from ...errors import EngineError, UnsupportedModelError, exhausted
from .build import shape_tensor, spec_of
from .compiled import Compiled, compiled_for
from .contexts import ContextSet
from .details import EngineDetails, EngineMemory

if TYPE_CHECKING:
    import tensorrt

    from ...core.tensor_spec import TensorSpec
    from .flavour import Flavour
    from .gpu import CudaDevice
    from .options import Options
    from .profiles import Profile

__all__ = ["SUFFIXES", "Engine", "manifest_path", "read_engine", "write_engine"]

#: The instances of an engine share sets of contexts. Runs of different sets overlap, and each set has the device memory
#: of a run. There are three sets, or two if three take more than this many bytes.
CONTEXT_SETS_NBYTES = 1 << 30

#: Suffixes of engine files.
SUFFIXES = (".engine", ".plan", ".trtmodel")


# ---- files ----


def manifest_path(engine: Path) -> Path:
    """The path of the manifest of an engine file, in the same folder."""
    return engine.with_name(engine.name + ".json")


def write_engine(path: Path, data: bytes, details: EngineDetails, backend: str) -> Manifest:
    """Writes an engine file and its manifest.

    Raises:
        OutputError: it cannot be written; earlier files are unchanged.
    """
    now = datetime.datetime.now(datetime.timezone.utc)
    manifest = Manifest(
        kind="engine", backend=backend, label=Path(details.model).name, sha256=hashlib.sha256(data).hexdigest(),
        nbytes=len(data), created=now, last_used=now, details=details.plain(),
    )  # fmt: skip
    write_blob(path, data, manifest, manifest_path(path))
    return manifest


def read_engine(engine: ModelLike, flavour: Flavour, device: CudaDevice | None) -> tuple[bytes, EngineDetails | None]:
    """An engine and its manifest, if there is one beside its file. Both are checked as far as possible without the
    runtime.

    Args:
        device: the GPU for it; None is not checked.

    Raises:
        EngineError: it is damaged, no engine, or for another runtime, version or GPU.
    """
    source = ModelSource.of(engine)
    data = source.read()
    beside = None if source.path is None else manifest_path(source.path)
    details = None
    if beside is not None and beside.exists():
        manifest = read_manifest(beside)
        try:
            details = EngineDetails.of(manifest.details) if manifest else None
        except msgspec.ValidationError:
            details = None
        if manifest is None or details is None:
            raise EngineError(
                f"{str(beside)!r} should be the manifest of {source.name}, but cannot be read; build the engine "
                "again, or remove that file to load without its checks"
            )
        if not manifest.matches(data):
            raise EngineError(
                f"{str(source)!r} is damaged: it has {len(data):,} bytes, and its manifest says {manifest.nbytes:,} "
                f"with SHA-256 {manifest.sha256[:16]}...; copy it again, or {_again(flavour, details)}"
            )
        if manifest.backend != flavour.backend:
            raise EngineError(
                f"{str(source)!r} is an engine of backend {manifest.backend!r}, not of {flavour.backend!r}"
            )
        check_details(str(source), details, flavour, device)
    check_header(str(source), data, flavour)
    return data, details


def check_details(what: str, details: EngineDetails, flavour: Flavour, device: CudaDevice | None) -> None:
    """Raises EngineError if an engine is for another version of the runtime, or for other GPUs than `device`."""
    if details.version != flavour.version:
        raise EngineError(
            f"{what!r} was built by {flavour.title} {details.version}, and this is {flavour.version}, which does not "
            f"read it; {_again(flavour, details)}"
        )
    if device is not None and details.capabilities and device.capability not in details.capabilities:
        raise EngineError(
            f"{what!r} was built for compute capability {' and '.join(details.capabilities)}, and {device} "
            f"({device.name}) has {device.capability}; {_again(flavour, details)}"
        )


def check_header(what: str, data: bytes, flavour: Flavour) -> None:
    """Raises EngineError if the header is not that of a whole engine of TensorRT-RTX.

    The header of TensorRT-RTX 1.6: the magic "vtrt", at 16 the size of the file in 8 bytes, at 24 the version in 4. The
    runtime checks the header of the full TensorRT.
    """
    if not flavour.rtx:
        return
    if len(data) < 64 or data[:4] != b"vtrt":
        raise EngineError(f"{what!r} is no engine of {flavour.title}: it begins with {data[:4]!r}")
    (size,) = struct.unpack_from("<Q", data, 16)
    version = ".".join(str(part) for part in data[24:28])
    if version != flavour.version:
        raise EngineError(
            f"{what!r} was built by {flavour.title} {version}, and this is {flavour.version}, which does not read it; "
            "build it again from its ONNX file"
        )
    if size != len(data):
        raise EngineError(f"{what!r} is damaged: it should have {size:,} bytes and has {len(data):,}; copy it again")


def _again(flavour: Flavour, details: EngineDetails) -> str:
    model = Path(details.model)
    where = str(model) if model.exists() else model.name
    return f"build it again: infersdk build {where} --backend {flavour.backend}"


# ---- running ----


class Engine:
    """A deserialised engine, shared by an Infer and its clones.

    Args:
        what: the file, for messages.
        device: current in the calling thread.
        cache: for compiled kernels (TensorRT-RTX); None keeps nothing.
        memory: its weights count against this budget until it is freed.
        compiled: the kernels of the engine that `data` was serialised from. An engine that is serialised again has
            another digest.

    Raises:
        EngineError: the runtime does not take it.
    """

    def __init__(
        self,
        flavour: Flavour,
        data: bytes,
        what: str,
        device: CudaDevice,
        cache: Cache | None,
        memory: EngineMemory | None = None,
        compiled: Compiled | None = None,
    ) -> None:
        trt = flavour.trt
        self.memory = memory
        self._reserved = memory.budget.reserve(memory.weights) if memory is not None else None
        self.flavour, self.name, self.device = flavour, what, device
        #: Held while contexts are created, set or run. TensorRT-RTX 1.6.1 compiles within runs, and crashes if two
        #: threads do that for one engine.
        self.guard = threading.Lock()
        self._sets: list[ContextSet] = []  # shared by instances
        with flavour.messages() as messages:
            self._runtime: tensorrt.Runtime = trt.Runtime(flavour.logger)
            doubts = ""
            if flavour.rtx:
                rtx: Any = self._runtime
                validity, why = rtx.get_engine_validity(data)
                if validity == trt.EngineValidity.INVALID:
                    doubts = (
                        f"{what!r} does not run on {device} ({device.name}, compute capability {device.capability}) "
                        f"with {flavour.title} {flavour.version}: {_reasons(trt, why)}"
                    )
                    # It accepts the capabilities of RTX GPUs alone, but other GPUs run engines, too.
                    if int(why) != int(trt.EngineInvalidityDiagnostics.UNSUPPORTED_CC):
                        raise EngineError(doubts)
            self._engine = self._runtime.deserialize_cuda_engine(data)
        if self._engine is None:
            raise exhausted(messages.last_error(), what) or EngineError(
                doubts
                or f"{flavour.title} {flavour.version} cannot read {what!r}: {messages.last_error()}; build it again "
                "from its ONNX file"
            )
        self.compiled = compiled
        if flavour.rtx and compiled is None:
            key = key_of(
                {"compiled": 2, "backend": flavour.backend, "version": flavour.version, "gpu": device.name,
                 "capability": device.capability, "engine": hashlib.sha256(data).hexdigest(),
                 "encrypted": cache is not None and cache.sealer is not None}
            )  # fmt: skip
            rtx_config: Any = self._engine.create_runtime_config()
            make = rtx_config.create_runtime_cache
            self.compiled = compiled_for(make, key, cache, device, flavour.backend, Path(what).name)

    def serialized(self) -> bytes:
        """The engine as bytes on the host."""
        return bytes(self._engine.serialize())

    @property
    def scratch_nbytes(self) -> int:
        """The device memory of a running context, for any shapes."""
        return int(self._engine.device_memory_size_v2)

    @property
    def auxiliary_streams(self) -> int:
        """The number of additional streams of a run."""
        return int(self._engine.num_aux_streams)

    @property
    def next_scratch_nbytes(self) -> int:
        """The device memory of another instance."""
        return self.scratch_nbytes if len(self._sets) < self._most_sets else 0

    @property
    def _most_sets(self) -> int:
        return 3 if 3 * self.scratch_nbytes <= CONTEXT_SETS_NBYTES else 2

    def join(self, options: Options) -> ContextSet:
        """The contexts for another instance: a new set, or that with the fewest users if there are enough."""
        with self.guard:
            if len(self._sets) < self._most_sets:
                self._sets.append(ContextSet(self, options))
                return self._sets[-1]
            result = min(self._sets, key=lambda contexts: contexts.users)
            result.users += 1
            return result

    def leave(self, contexts: ContextSet) -> None:
        """Ends the use of a set by an instance. The last user frees it."""
        with self.guard:
            contexts.users -= 1
            if not contexts.users:
                self._sets = [other for other in self._sets if other is not contexts]
                contexts.close()

    def context(self, options: Options) -> tensorrt.IExecutionContext:
        """A new execution context without device memory, for one thread at a time."""
        trt = self.flavour.trt
        lent = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context: tensorrt.IExecutionContext | None
        with self.flavour.messages() as messages:
            if self.compiled is not None:
                config: Any = self._engine.create_runtime_config()  # with methods of TensorRT-RTX
                config.set_execution_context_allocation_strategy(lent)
                config.set_runtime_cache(self.compiled.raw)
                # A graph keeps its kernels, so they must be the final ones.
                specialization = options.kernel_specialization or ("eager" if options.cuda_graph else None)
                if specialization is not None:
                    config.dynamic_shapes_kernel_specialization_strategy = getattr(
                        trt.DynamicShapesKernelSpecializationStrategy, specialization.upper()
                    )
                context = self._engine.create_execution_context(runtime_config=config)
            else:
                context = self._engine.create_execution_context(lent)
        if context is None:
            raise exhausted(messages.last_error(), self.name) or EngineError(
                f"{self.name!r}: no execution context can be had: {messages.last_error()}"
            )
        return context

    def describe(self, details: EngineDetails | None) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """Inputs and outputs in the order of the model, with the names of free dimensions from `details`.

        Raises:
            UnsupportedModelError: an input on the host, or of a type that no array has.
        """
        engine, trt = self._engine, self.flavour.trt
        known = {spec.name: spec for spec in (*details.inputs, *details.outputs)} if details else {}
        sides: dict[Any, list[TensorSpec]] = {trt.TensorIOMode.INPUT: [], trt.TensorIOMode.OUTPUT: []}
        for name in (engine.get_tensor_name(i) for i in range(engine.num_io_tensors)):
            if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
                raise UnsupportedModelError(shape_tensor(name))
            spec = spec_of(
                self.flavour, name, engine.get_tensor_dtype(name), tuple(engine.get_tensor_shape(name)), known.get(name)
            )
            sides[engine.get_tensor_mode(name)].append(spec)
        order = {name: i for i, name in enumerate(known)}
        inputs, outputs = (tuple(sorted(s, key=lambda spec: order.get(spec.name, len(order)))) for s in sides.values())
        return inputs, outputs

    def profiles(self, names: list[str]) -> list[Profile]:
        """The shapes of the inputs `names`, by profile."""
        return [
            {name: _three(self._engine.get_tensor_profile_shape(name, index)) for name in names}
            for index in range(self._engine.num_optimization_profiles)
        ]


def _three(shapes: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    low, opt, high = (tuple(shape) for shape in shapes)
    return low, opt, high


def _reasons(trt: Any, bits: int) -> str:
    """The reasons of `get_engine_validity`."""
    names = [
        name.replace("_", " ").lower()
        for name, value in trt.EngineInvalidityDiagnostics.__members__.items()
        if int(bits) & int(value)
    ]
    return ", ".join(names) or "it does not say why"
