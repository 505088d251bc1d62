"""The harnesses: that they work, in the suite, and for hours with `-m fuzz` (INFERSDK_FUZZ_SECONDS each)."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import mutation  # noqa: E402
import run  # noqa: E402
import targets  # noqa: E402
from native_programs import shared_folder  # noqa: E402

HARNESSES = [*run.NATIVE_HARNESSES, *targets.TARGETS]
#: Of a harness in C, in the suite; one whose cases take milliseconds each has fewer.
NATIVE_CASES, SLOW_CASES = 3000, {"fuzz_class_map": 1000}


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory)


def outcome_of(name: str, folder: Path, *, cases: int = 2**40, seconds: float = 0.0, seed: int = 1) -> run.Outcome:
    if name in run.NATIVE_HARNESSES:
        outcome = run.run_native(name, cases=cases, seconds=seconds, seed=seed, folder=folder)
    else:
        outcome = run.run_python(name, cases=cases, seconds=seconds, seed=seed)
    if outcome is None:
        pytest.skip("what the harness needs is not there")
    assert not outcome.findings, "\n".join(outcome.findings)
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("name", HARNESSES)
def test_some_cases_of_each(name: str, programs: Path) -> None:
    cases = SLOW_CASES.get(name, NATIVE_CASES) if name in run.NATIVE_HARNESSES else 60
    outcome = outcome_of(name, programs, cases=cases)
    assert outcome.cases == cases
    assert outcome.refused > 0
    assert outcome.accepted > 0 or name == "models", "damage alone shows nothing"


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", HARNESSES)
def test_each_for_long(name: str, programs: Path) -> None:
    seconds = float(os.environ.get("INFERSDK_FUZZ_SECONDS", "3600"))
    outcome = outcome_of(name, programs, seconds=seconds, seed=int(os.environ.get("INFERSDK_SEED", "1")))
    print(f"{name}: {outcome.cases} cases, {outcome.accepted} accepted, {outcome.refused} refused")


@pytest.mark.slow
def test_a_case_depends_on_its_number_alone(programs: Path) -> None:
    whole = outcome_of("fuzz_tensor", programs, cases=400)
    parts = [run.run_native("fuzz_tensor", first=first, cases=200, folder=programs) for first in (0, 200)]
    assert whole.accepted == sum(part.accepted for part in parts if part)


def test_a_mutation_depends_on_its_seed_alone() -> None:
    for name, data in targets.corpus("images").items():
        assert mutation.mutate(random.Random("1:5"), data) == mutation.mutate(random.Random("1:5"), data), name


@pytest.mark.parametrize("kind", ["images", "tensors", "tables", "reports"])
def test_the_corpus_is_well_formed(kind: str) -> None:
    """Else the harness would show nothing but refusals."""
    from infersdk import Tensor
    from infersdk.bench import read_report
    from infersdk.errors import ImageError
    from infersdk.image import read_image
    from infersdk.quant import CalibrationTable

    for name, data in targets.corpus(kind).items():
        path = targets.CORPUS / kind / name
        if name.startswith("refused."):
            with pytest.raises(ImageError, match="not an image of a format that is read"):
                read_image(data)
        elif kind == "images":
            assert read_image(data).size in ((16, 12), (12, 16)), name
        elif kind == "tensors":
            assert Tensor.from_bytes(data).size > 0
        elif kind == "reports":
            assert read_report(path).rows
        elif name in ("table.json", "trt.cache"):
            assert CalibrationTable.load(path).tensors


def test_findings_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An error that is not the package's, a process that ends, and a case that takes too long."""
    source = (HERE / "targets.py").read_text()
    busy = "from time import process_time as now\n    end = now() + 0.6\n    while now() < end: pass\n    return True"
    for body, words in (
        ("raise ValueError('odd')", "ValueError: odd"), ("__import__('os').abort()", "exit code -6"),
        (busy, "of processor time"),
    ):  # fmt: skip
        (tmp_path / "targets.py").write_text(
            f"{source}\n\ndef odd(rng):\n    {body}\n\nTARGETS['odd'] = Target(odd, seconds=0.2)\n"
        )
        helpers = ("mutation.py", "serve_targets.py", "grpc_targets.py", "http_targets.py", "configuration_trees.py")
        for file in ("run.py", *helpers):
            (tmp_path / file).write_text((HERE / file).read_text().replace("HERE.parent", repr(str(HERE.parent))))
        (tmp_path / "native").mkdir(exist_ok=True)
        monkeypatch.setattr(run, "HERE", tmp_path)
        monkeypatch.setitem(targets.TARGETS, "odd", targets.Target(lambda rng: True))
        outcome = run.run_python("odd", cases=3)
        assert any(words in finding for finding in outcome.findings), outcome.findings
        assert "repeat it" in outcome.findings[0]
