"""ONNX's own backend tests, through `infersdk.load()` and through the bare runtimes, side by side.

Both run in one process on the same cases, and the two lists of what passes are compared: an Infer neither loses nor
gains a case. It computes each case twice, the second time with the model in the cache. Among the cases are models of
strings, sequences, optionals, bfloat16 and float8, which an Infer calls without binding tensors; what passes of these
is counted by type beside. Both have one thread: what a case gives is asked here, and threads of thousands of small
models take longer to start than the models to run.

`python tests/test_conformance.py` prints the table of docs/conformance.md.
"""

from __future__ import annotations

import functools
import os
import sys
import unittest
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the conformance suite is onnx's own")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="a dependency of onnx")

from onnx.backend.base import Backend, BackendRep  # noqa: E402
from onnx.backend.test import BackendTest  # noqa: E402

from infersdk.core.tensor_spec import DTYPES  # noqa: E402
from infersdk.testing.onnx_backend import backend_for  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

#: The element types that tensors hold, as ONNX numbers them.
NUMBERS = {onnx.helper.np_dtype_to_tensor_dtype(dtype) for dtype in DTYPES.values()}
#: How many parts the cases are dealt into, so that each ends within the time limit of a test also on a slow machine.
PARTS = {"onnxruntime": 4, "openvino": 8}


# ---- the bare runtimes, each the way its own manual calls it ----


class BareOnnxRuntime(BackendRep):
    """`onnxruntime.InferenceSession`; types that NumPy has not go in as OrtValues."""

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.make_value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type

    def run(self, inputs: Any, **_: Any) -> list[Any]:
        names = [node.name for node in self.session.get_inputs()]
        feeds = {name: self._feed(value) for name, value in zip(names, inputs, strict=True)}
        return self.session.run(None, feeds)

    def _feed(self, value: Any) -> Any:
        if isinstance(value, np.generic):  # the suite gives scalars, the runtime takes arrays
            value = np.asarray(value)
        if isinstance(value, np.ndarray) and value.dtype.type.__module__ == "ml_dtypes":
            return self.make_value(value, onnx.helper.np_dtype_to_tensor_dtype(value.dtype))
        return value


class BareOpenVino(BackendRep):
    """`openvino.Core().compile_model()`, in the arithmetic that the model is written in, or else in float32.

    Left alone it computes in bfloat16 where the processor can, and fails some 260 cases more. So it does with float16
    where the processor has that not.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        core = openvino_core()
        kinds = {value.type.tensor_type.elem_type for value in model.graph.input}
        half = onnx.TensorProto.FLOAT16 in kinds and onnx.TensorProto.FLOAT not in kinds
        half = half and "FP16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        settings = {"INFERENCE_PRECISION_HINT": "f16" if half else "f32", "INFERENCE_NUM_THREADS": 1}
        self.model = core.compile_model(core.read_model(model.SerializeToString()), "CPU", settings)
        weights = {tensor.name for tensor in model.graph.initializer}
        self.names = [value.name for value in model.graph.input if value.name not in weights]
        self.taken = {name for port in self.model.inputs for name in port.names}  # the others were folded away
        # The runtime may read a sequence as an input that the file does not have. It would compute on memory that
        # nothing was written to, and pass where that happens to have the right numbers.
        unknown = [port.any_name for port in self.model.inputs if not port.names & set(self.names)]
        if unknown:
            raise ValueError(f"the runtime asks for inputs that the model does not have: {unknown}")

    def run(self, inputs: Any, **_: Any) -> list[Any]:
        given = zip(self.names, inputs, strict=True)
        results = self.model({name: value for name, value in given if name in self.taken})
        return [results[port] for port in self.model.outputs]


@functools.cache
def openvino_core() -> Any:
    """One for all models: its plugin for processors takes longer to load than most of them to compile."""
    import openvino

    return openvino.Core()


def bare_backend(rep: type[BackendRep]) -> type[Backend]:
    class Bare(Backend):
        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> BackendRep:
            return rep(model)

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device == "CPU"

    return Bare


BARE = {"onnxruntime": BareOnnxRuntime, "openvino": BareOpenVino}


# ---- running the suite ----


class Case(NamedTuple):
    category: str
    name: str


class Outcome(unittest.TestResult):
    """What came of one case: `error` is None for a pass. A skip, which nothing here asks for, is no pass."""

    error: BaseException | None = None

    def addError(self, test: Any, error: Any) -> None:  # noqa: N802 - unittest's name
        self.error = error[1]

    def addFailure(self, test: Any, error: Any) -> None:  # noqa: N802
        self.error = error[1]

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self.error = unittest.SkipTest(reason)


class Suite:
    """ONNX's cases over one backend, for the processor."""

    def __init__(self, backend: type[Backend]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the suite computes overflows and divisions by zero on purpose
            self.classes = BackendTest(backend).test_cases

    def cases(self) -> list[Case]:
        return [
            Case(category, name)
            for category, kind in sorted(self.classes.items())
            for name in sorted(vars(kind))
            if name.startswith("test_") and name.endswith("_cpu")
        ]

    def run(self, case: Case) -> BaseException | None:
        outcome = Outcome()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.classes[case.category](case.name).run(outcome)
        return outcome.error


def odd_types(model: onnx.ModelProto) -> list[str]:
    """What there is among the inputs and outputs besides tensors of numbers and bools."""
    odd = set()
    for value in (*model.graph.input, *model.graph.output):
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            odd.add(kind.removesuffix("_type"))
        elif value.type.tensor_type.elem_type not in NUMBERS:
            odd.add(onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower())
    return sorted(odd)


@functools.cache
def odd_cases() -> dict[str, list[str]]:
    """The cases whose models are not tensors of numbers alone, with what they are."""
    from onnx.backend.test.loader import load_model_tests

    odd = {}
    for kind in ("node", "simple", "pytorch-converted", "pytorch-operator"):  # the real ones are images all
        for case in load_model_tests(kind=kind):
            odd[f"{case.name}_cpu"] = odd_types(case.model or onnx.load(f"{case.model_dir}/model.onnx"))
    return {name: types for name, types in odd.items() if types}


class Comparison(NamedTuple):
    """Two lists of what passes, and each case in which they differ, with the reason."""

    cases: int
    bare: set[Case]
    infer: set[Case]
    called: dict[Case, str]  # both pass, by a call alone: the types that no tensor holds
    differences: dict[Case, str]


def compare_lists(runtime: str, part: int = 0, parts: int = 1) -> Comparison:
    bare, infer = Suite(bare_backend(BARE[runtime])), Suite(backend_for(runtime, threads=1))
    cases = bare.cases()[part::parts]
    comparison = Comparison(len(cases), set(), set(), {}, {})
    for case in cases:
        bare_error, error = bare.run(case), infer.run(case) or infer.run(case)  # the second time from the cache
        if bare_error is None:
            comparison.bare.add(case)
        if error is None:
            comparison.infer.add(case)
        if error is None and bare_error is None and case.name in odd_cases():
            comparison.called[case] = ", ".join(odd_cases()[case.name])
        if (error is None) != (bare_error is None):
            comparison.differences[case] = f"{runtime} alone: {bare_error or 'passes'}; infersdk: {error or 'passes'}"
    return comparison


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The "real" cases write their data into a folder of the user's; here it goes away, as does the cache."""
    monkeypatch.setenv("ONNX_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "part"), [(runtime, part) for runtime, parts in PARTS.items() for part in range(parts)]
)
def test_passes_what_the_bare_runtime_passes(runtime: str, part: int, record_property: Any) -> None:
    pytest.importorskip(runtime)
    comparison = compare_lists(runtime, part, PARTS[runtime])
    for name in ("cases", "bare", "infer", "called"):
        value = getattr(comparison, name)
        record_property(name, value if isinstance(value, int) else len(value))
    assert comparison.cases > 1600 / PARTS[runtime]
    assert len(comparison.bare) > comparison.cases / 2, "the bare runtime fails most cases: the adapter is at fault"
    assert not comparison.differences, "\n".join(f"{case.name}: {why}" for case, why in comparison.differences.items())
    assert comparison.infer == comparison.bare


def main() -> None:
    """Prints the counts and the differences of each runtime."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        os.environ["ONNX_MODELS"] = folder
        for runtime in sys.argv[1:] or BARE:
            result = compare_lists(runtime)
            reasons = Counter(result.called.values())
            print(
                f"{runtime}: {result.cases} cases; the runtime alone passes {len(result.bare)}, "
                f"infersdk {len(result.infer)}; differences {len(result.differences)}; never bound {dict(reasons)}"
            )
            for case, why in result.differences.items():
                print(f"  {case.name}: {why}")


if __name__ == "__main__":
    main()
