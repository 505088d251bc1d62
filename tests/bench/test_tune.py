"""Tuning: what is tried, what is kept, and the file that comes out."""

from __future__ import annotations

import datetime
import os
import signal
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from idle_backend import IdleInfer
from labelled import coco_set, damaged
from onnx_models import node, save, value

import infersdk
from infersdk.bench import BenchSettings, Combination, Report, bench, combine
from infersdk.bench.candidates import candidates
from infersdk.bench.report import Row
from infersdk.bench.tune import Tuned, tune
from infersdk.bench.tuned_file import tuned_toml
from infersdk.bench.worker_process import WorkerProcess
from infersdk.core.target import Target
from infersdk.data import DETECTOR
from infersdk.errors import BackendNotFoundError, ConfigError

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")


INT8 = Target("onnxruntime", precision="int8")


def perceptron(path: Path, width: int) -> Path:
    """A network of two products."""
    weights = [np.random.default_rng(width).standard_normal(shape) for shape in ((4, width), (width, 10))]
    return save(
        path, [node("MatMul", "x w0", "h"), node("MatMul", "h w1", "y")],
        [value("x", ("batch", 4))], [value("y", ("batch", 10))],
        {f"w{i}": weight.astype(np.float32) for i, weight in enumerate(weights)},
    )  # fmt: skip


def test_candidates() -> None:
    quick = candidates(["a.onnx"], ["onnxruntime", "openvino"], objective="latency", threads=[0, 2])
    assert {c.batch for c in quick} == {1}
    assert quick[0] == Combination(model="a.onnx")  # the defaults first
    assert {c.target.precision for c in quick} == {None, "bf16", "fp16"}
    assert {str(c.options) for c in quick} == {"{}", "{'threads': 2}"}
    many = candidates(
        ["a.onnx", "b.onnx"], ["openvino/bf16"], objective="throughput", threads=[2], batches=[1, 4]
    )  # fmt: skip
    assert {c.target.precision for c in many} == {"bf16"}
    assert len(many) == 2 * 2 * len({str(c.options) for c in many})
    assert {"performance_hint", "streams"} <= {key for c in many for key in c.options}
    assert len({(c.model, c.name) for c in many}) == len(many)
    with pytest.raises(BackendNotFoundError, match="no backend 'nonesuch'.*leave it out"):
        candidates(["a.onnx"], ["nonesuch"], objective="latency")
    for wrong, words in (
        ({"models": "m.onnx"}, "models is a list, not 'm.onnx'"), ({"targets": []}, "no backends"),
        ({"objective": "speed"}, "the objective is .*, not 'speed'"), ({"precisions": ["fp9"]}, "fp9"),
        ({"batches": [0]}, "a batch is a whole number from 1, not 0"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            candidates(**{"models": ["a.onnx"], "targets": ["onnxruntime"], "objective": "latency", **wrong})


def test_arguments_of_other_types() -> None:
    with pytest.raises(ConfigError, match="'m.onnx' is a str, not a Combination"):
        tune(["m.onnx"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="is a dict, not a BenchSettings"):
        tune([Combination(model=str(DETECTOR))], {"time": 1})  # type: ignore[arg-type]


def test_on_a_gpu_what_runs_there_goes_first() -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    found = candidates(["a.onnx"], ["onnxruntime", "tensorrt-rtx"], objective="throughput", threads=[0])
    backends = [what.target.backend for what in found]
    assert backends[:10] == ["tensorrt-rtx"] * 10
    assert "onnxruntime" in backends
    # Another precision is tried before other options, and float16 inputs and outputs only where the model is so.
    rtx = [what for what in found if what.target.backend == "tensorrt-rtx"]
    assert rtx.index(msgspec.structs.replace(rtx[0], target=Target("tensorrt-rtx", precision="fp16"))) < rtx.index(
        msgspec.structs.replace(rtx[0], options={"cuda_graph": True})
    )
    assert {what.target.precision for what in rtx if "half_io" in what.options} == {"fp16"}
    assert not any(what.options for what in found if what.target.backend == "onnxruntime")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> BenchSettings:
    pytest.importorskip("pycocotools")
    annotations, images = coco_set(tmp_path_factory.mktemp("coco"))
    return BenchSettings(data=str(images), annotations=str(annotations))


@pytest.mark.slow
def test_the_winner_is_quick_and_accurate(data: BenchSettings, tmp_path: Path) -> None:
    # The damaged model is as quick as the other, and finds next to nothing. A batch of 4 takes longer than one of 1.
    model, bad = tmp_path / "good one.onnx", damaged(tmp_path / "bad.onnx", noise=2.0)
    model.write_bytes(DETECTOR.read_bytes())
    search = [
        Combination(model=str(model), batch=4), Combination(model=str(model), options={"threads": 1}),
        Combination(model=str(bad), options={"threads": 1}), Combination(model=str(bad)),
        Combination(model=str(model), target=INT8),
    ]  # fmt: skip
    found = tune(search, data, objective="latency", budget=60)
    assert found.best.combination == search[1]
    # On a busy machine the budget may end before the last of them; none is lost.
    assert len(found.tried) + len(found.failed) + len(found.untried) == 5
    assert set(found.failed) <= {search[4].name}
    assert search[4].name in {*found.failed, *found.untried}
    assert all(name.startswith("bad.onnx") and "mAP" in loss for name, loss in found.dropped.items())
    assert found.accuracy.startswith("mAP 0.")
    assert all(Path(row.combination.model) == model for row in found.report.rows)
    output = tmp_path / "made" / ".." / "tuned.toml"
    text = tuned_toml(found, data, output)
    file = tmp_path / "tuned.toml"
    file.write_text(text)
    assert msgspec.toml.decode(text) == {
        "models": {
            "good-one": {
                "type": "yolov5", "path": "good one.onnx", "backend": "onnxruntime", "max_batch": 1,
                "options": {"threads": 1}, "pipeline": {"max_batch": 1},
            }
        }
    }  # fmt: skip
    with infersdk.load(file) as infer:
        assert (Path(infer.model), infer.backend, infer.max_batch, infer.options.threads) == (
            model,
            "onnxruntime",
            1,
            1,
        )
    elsewhere = tmp_path / "configurations" / "tuned.toml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(tuned_toml(found, data, elsewhere))
    assert msgspec.toml.decode(elsewhere.read_bytes())["models"]["good-one"]["path"] == "../good one.onnx"
    with infersdk.load(elsewhere) as infer:
        assert Path(infer.model).samefile(model)
    built_in = tuned_toml(found, msgspec.structs.replace(data, wrapper={"names": "coco"}), elsewhere)
    assert msgspec.toml.decode(built_in)["models"]["good-one"]["names"] == "coco"
    made = infersdk.models.create(file)["good-one"]
    assert type(made).__name__ == "YOLOv5"
    assert made.pipeline.max_batch == 1
    made.close()


def test_the_configuration_of_the_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads are written, if the backend takes them, each character of a path, and no setting that is None."""
    file = perceptron(tmp_path / "\N{AUTOMOBILE} \x7f.onnx", 8)

    def written(what: Combination, **wrapper: Any) -> Any:
        row = Row(name=what.name, combination=what, status="ok", ran={"kind": "yolov5"} if wrapper else None)
        report = Report(
            rows=[row], settings=BenchSettings(wrapper=wrapper), models=[],
            machine={"processor": "", "cores": 1, "gpus": []}, created=datetime.datetime.now(datetime.timezone.utc),
            seconds=0.0,
        )  # fmt: skip
        text = tuned_toml(Tuned(report.rows[0], report, "latency"), report.settings, tmp_path / "tuned.toml")
        (tmp_path / "tuned.toml").write_text(text, "utf-8")
        (table,) = msgspec.toml.decode(text)["models"].values()
        return table

    table = written(*combine([file], threads=2, options={"inter_op_threads": 1}))
    assert table["options"] == {"threads": 2, "inter_op_threads": 1}
    assert table["path"] == file.name
    table = written(*combine([file]), preset=None, names=tmp_path / "names.txt", files=(Path("a"), Path("b")))
    assert table == {
        "type": "yolov5", "path": file.name, "backend": "onnxruntime", "names": "names.txt", "files": ["a", "b"],
        "max_batch": 1, "pipeline": {"max_batch": 1},
    }  # fmt: skip
    monkeypatch.setattr("infersdk.bench.tuned_file.backend_class", lambda name: IdleInfer)
    assert "options" not in written(*combine([file], threads=2))


def test_nothing_is_left(data: BenchSettings, tmp_path: Path) -> None:
    bad = damaged(tmp_path / "bad.onnx", noise=2.0)
    with pytest.raises(ConfigError, match="none of the 1 candidates could be measured; .*int8"):
        tune([Combination(model=str(DETECTOR), target=INT8)], budget=5)
    with pytest.raises(ConfigError, match=r"every candidate loses more than 0.01 of accuracy; bad.onnx .*mAP"):
        # The first model is the reference; it cannot run in the precision asked for here.
        tune([Combination(model=str(DETECTOR), target=INT8), Combination(model=str(bad))], data, budget=120)
    with pytest.raises(ConfigError, match='the objective is "latency" or "throughput", not \'speed\''):
        tune([Combination(model=str(DETECTOR))], objective="speed")  # type: ignore[arg-type]
    for wrong in ({"budget": 0}, {"budget": "1"}, {"max_drop": 1.0}, {"max_drop": "0.1"}):
        with pytest.raises(ConfigError, match="is a number"):
            tune([Combination(model=str(DETECTOR))], **wrong)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_reference_is_the_first_file_whatever_the_others_are(tmp_path: Path) -> None:
    """Another network with the same inputs and outputs, and half as many parameters, is not its own reference."""
    first, other = (perceptron(tmp_path / f"{width}.onnx", width) for width in (16, 8))
    search = [Combination(model=str(first), target=INT8), Combination(model=str(other))]
    with pytest.raises(ConfigError, match=r"every candidate loses more than 0.01 of accuracy; 8.onnx .*against 1.0"):
        tune(search, budget=30)


def test_the_given_reference_is_used_for_every_file(tmp_path: Path) -> None:
    first, other = (perceptron(tmp_path / f"{width}.onnx", width) for width in (16, 8))
    settings = BenchSettings(time=0.01, rounds=1, warmup=0.01, scenarios=["engine"])
    (row,) = bench(combine([other]), settings, loading=False, reference=str(first)).rows
    assert row.accuracy.reference == "16.onnx on onnxruntime/fp32"
    assert row.accuracy.value < 0.9


def test_weights_in_constant_nodes_are_parameters_of_a_reference(tmp_path: Path) -> None:
    import onnx

    file = perceptron(tmp_path / "weights.onnx", 16)
    model = onnx.load(str(file))
    constants = [onnx.helper.make_node("Constant", [], [one.name], value=one) for one in model.graph.initializer]
    del model.graph.initializer[:]
    for constant in constants:
        model.graph.node.insert(0, constant)
    onnx.save(model, str(tmp_path / "constants.onnx"))
    settings = BenchSettings(time=0.01, rounds=1, warmup=0.01, scenarios=["engine"])
    report = bench(combine([tmp_path / "constants.onnx", file]), settings, loading=False)
    assert [one.parameters for one in report.models] == [4 * 16 + 16 * 10] * 2
    assert {row.accuracy.reference for row in report.rows} == {"constants.onnx on onnxruntime/fp32"}


def test_the_size_of_a_model_in_the_report_includes_its_external_data(tmp_path: Path) -> None:
    import onnx

    model, file = onnx.load(str(perceptron(tmp_path / "whole.onnx", 16))), tmp_path / "model.onnx"
    onnx.save(model, str(file), save_as_external_data=True, location="model.data", size_threshold=0)
    settings = BenchSettings(time=0.01, rounds=1, warmup=0.01, scenarios=["engine"])
    (described,) = bench(combine([file]), settings, loading=False, accuracy=False).models
    assert described.bytes == file.stat().st_size + 4 * (4 * 16 + 16 * 10)


def test_a_first_file_that_is_no_reference(tmp_path: Path) -> None:
    import openvino

    file = tmp_path / "net.xml"
    openvino.save_model(openvino.Core().read_model(perceptron(tmp_path / "net.onnx", 8)), file)
    with pytest.raises(ConfigError, match=r"accuracy of no candidate could be measured; net.xml .*The first file"):
        tune(combine([file], ["openvino"]), BenchSettings(type="arrays"), budget=60)


def test_a_budget_that_is_too_short_for_one_run() -> None:
    search = [Combination(model=str(DETECTOR), batch=32, options={"threads": 1})]
    with pytest.raises(ConfigError, match=r"its run takes longer than the 0.05 s that it had; give a larger budget"):
        tune(search, BenchSettings(), budget=0.1)


def test_a_target_that_cannot_run_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, ask = [], WorkerProcess.ask

    def asked(self: WorkerProcess, do: str, **order: Any) -> Any:
        steps.append(do)
        return ask(self, do, **order)

    monkeypatch.setattr(WorkerProcess, "ask", asked)
    with pytest.raises(ConfigError, match="none of the 2 candidates could be measured; .*'cuda:99'"):
        tune(
            [Combination(model=str(DETECTOR), target=Target("onnxruntime", "cuda:99"), batch=batch) for batch in (1, 2)]
        )
    assert steps == ["load"]


def test_the_budget_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that loads for minutes is ended when the budget is over; what was measured before is the result."""
    ask, slow = WorkerProcess.ask, Combination(model=str(DETECTOR), options={"threads": 2})

    def asked(self: WorkerProcess, do: str, **order: Any) -> Any:
        if do == "load" and order["combination"].options == slow.options:
            *_, worker = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
            os.kill(int(worker), signal.SIGSTOP)
        return ask(self, do, **order)

    monkeypatch.setattr(WorkerProcess, "ask", asked)
    found = tune([Combination(model=str(DETECTOR)), slow], BenchSettings(type="arrays"), budget=5)
    assert found.best.combination.options == {}
    assert found.best.latency is not None
    assert found.untried == [slow.name]
    assert found.seconds < 15, "the first candidate is tried as long as it takes"
