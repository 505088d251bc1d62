"""Measuring: real processes, tiny models, little time."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import sys
import threading
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from labelled import coco_set, crops
from onnx_models import node, save
from onnx_models import value as array

import infersdk
from infersdk.bench import BenchSettings, Combination, Report, bench, combine, read_report
from infersdk.bench.cold_start import STAGES
from infersdk.bench.compare import compare_reports
from infersdk.bench.machine import Contention
from infersdk.bench.page import html_report
from infersdk.bench.plan import targets_of, usable_backends
from infersdk.bench.report import Accuracy, ColdStart, Energy
from infersdk.bench.statistics import median_of_rounds
from infersdk.bench.tune import tune
from infersdk.bench.worker import Worker
from infersdk.bench.workload import kind_of
from infersdk.commands.bench_tables import show
from infersdk.core.target import Target
from infersdk.data import CLASSIFIER, DETECTOR
from infersdk.errors import ConfigError, ModelNotFoundError
from infersdk.models import ModelDescription
from infersdk.testing import contract_model

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")

QUICK = BenchSettings(time=0.1, rounds=5, warmup=0.2, starts=0)
ONE_ROUND = msgspec.structs.replace(QUICK, rounds=1)


@pytest.fixture(scope="module")
def report() -> Report:
    """A detector on two backends, in a precision that cannot be had, and on a device that is not there.

    `test_scenarios.py` measures cold starts; here a row has one that nothing measured.
    """
    combinations = [
        *combine([DETECTOR], ["onnxruntime", "openvino"], batches=[2], threads=1),
        *combine([DETECTOR], ["onnxruntime/int8", "onnxruntime@cuda:99"]),
    ]
    report = bench(combinations, QUICK)
    report.rows[0].cold_start = ColdStart(seconds=median_of_rounds([1.5]), stages=dict.fromkeys(STAGES, 0.375))
    return report


def test_combinations() -> None:
    found = combine(["a.onnx", "b.onnx"], ["onnxruntime", "openvino/bf16"], precisions=["fp32", None], batches=[1, 8])
    assert len(found) == 2 * 3 * 2  # a backend that names its precision has that one alone
    assert found[0] == Combination(model="a.onnx", target=Target("onnxruntime", precision="fp32"))
    assert {str(c.target) for c in found} == {"onnxruntime/fp32", "onnxruntime", "openvino/bf16"}
    assert found[-1].name == "b.onnx openvino/bf16 batch 8"
    assert len(combine(["a.onnx"], ["onnxruntime", "onnxruntime"])) == 1
    for wrong, message in (
        ({"precisions": ["fp8"]}, "unknown precision 'fp8'"), ({"batches": [0]}, "whole number from 1, not 0"),
        ({"targets": ["a@b@c"]}, "does not name a backend"), ({"targets": []}, "no backends"),
        ({"batches": ["8"]}, "whole number from 1, not '8'"), ({"batches": [1.5]}, "whole number from 1, not 1.5"),
        ({"batches": 8}, "batches is a list, not 8"), ({"targets": "openvino"}, "backends is a list, not 'openvino'"),
        ({"threads": 1, "options": {"threads": 2}}, "threads are given twice"),
        ({"threads": -1}, "threads is -1, not an int >= 0"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            combine(["a.onnx"], **wrong)  # type: ignore[arg-type]
    assert combine(["a.onnx"], batches=np.array([1, 8])) == combine(["a.onnx"], batches=[np.int64(1), 8])


def test_five_measures(report: Report) -> None:
    for row in report.rows[:2]:
        assert row.status == "ok", row.reason
        assert (row.ran["precision"], row.ran["device"], row.ran["kind"]) == ("fp32", "cpu", "yolov5")
        assert row.scenarios.keys() >= {"engine", "multi_stream", "offline"}
        for result in row.scenarios.values():
            assert len(result.throughput.rounds) == QUICK.rounds
            assert result.throughput.low <= result.throughput.value <= result.throughput.high
            assert result.latency_ms["p50"] is not None
        single = row.latency
        engine = row.scenarios["engine"].latency_ms["p50"]
        assert engine is not None
        # A call's stages are the call, near enough; all of its time is somewhere. Rounds differ on a machine in use.
        assert 0.5 * min(single.rounds) < sum(row.stages_ms.values()) < 1.5 * max(single.rounds)
        assert row.stages_ms.keys() == {"engine", "around the engine"}  # the stages of several images overlap
        assert row.stages_ms["engine"] > 0
        assert 30e6 < row.memory.host_model_bytes < row.memory.host_peak_bytes < 3e9
        assert row.accuracy.metric == "agreement"
        assert row.accuracy.value == pytest.approx(1, abs=1e-6)
        assert row.accuracy.reference == "digits_detector.onnx on onnxruntime/fp32"
        assert row.loading.cold_seconds > 0
        assert row.contention.seconds > 0.1
        assert (row.energy.images_per_joule is None) == row.energy.source.startswith("not measurable here")
    assert report.rows[1].loading is not None
    assert report.rows[0].loading.cached_seconds is None  # ONNX Runtime keeps nothing
    assert report.rows[0].loading.cached_first_run_seconds is None
    assert report.rows[1].loading.cached_seconds is not None
    assert report.rows[1].loading.cached_first_run_seconds is not None
    for row in report.rows[:2]:
        assert 0 < row.loading.cold_first_run_seconds < 30


def test_what_cannot_run_is_a_row_with_its_reason(report: Report) -> None:
    int8, no_device = report.rows[2:]
    assert int8.status == no_device.status == "failed"
    assert "infersdk quantize digits_detector.onnx --data FOLDER -o digits_detector.int8.onnx" in int8.reason
    assert int8.reason.startswith("precision 'int8'")
    assert "'cuda:99'" in no_device.reason
    assert (int8.code, no_device.code) == ("IFS204", "IFS203")
    assert not int8.scenarios


def test_json_and_csv(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text(report.json())
    assert json.loads(report.json())["schema"] == 1
    again = read_report(file)
    assert again.as_dict() == report.as_dict()
    assert again.rows[0].scenarios == report.rows[0].scenarios
    data = json.loads(report.json())  # with fields of a later infersdk
    for table in (data, data["settings"], *data["rows"], *(row["combination"] for row in data["rows"])):
        table["later"] = 1
    file.write_text(json.dumps(data))
    assert read_report(file).as_dict() == report.as_dict()
    lines = list(csv.DictReader(io.StringIO(report.csv())))
    assert [line["status"] for line in lines] == ["ok", "ok", "failed", "failed"]
    assert float(lines[1]["multi_stream_p50_ms"]) > 0
    assert lines[0]["threads"] == "1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"), ("[]", "is not a report"), ('{"kind": "infersdk-bench", "schema": 99}', "reads 1; update"),
        ('{"kind": "infersdk-bench", "schema": 1}', "is damaged: Object missing required field"),
        ('{"kind": "\\ud800"}', "is not JSON that can be read"),
    ],
)  # fmt: skip
def test_a_report_that_is_none(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "r.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_report(file)
    with pytest.raises(ConfigError, match="cannot read the report"):
        read_report(tmp_path / "none.json")


def test_a_report_whose_model_has_no_name(report: Report, tmp_path: Path) -> None:
    given = report.as_dict()
    del given["models"][0]["name"]
    file = tmp_path / "r.json"
    file.write_text(json.dumps(given))
    with pytest.raises(ConfigError, match=r"is damaged: Object missing required field `name` - at `\$\.models\[0\]`"):
        read_report(file)


def test_the_table_has_columns_for_scenarios_that_are_asked_for(
    report: Report, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for scenarios, columns in ((None, 0), (["engine"], 2), (["engine", "engine_parallel"], 4)):
        row = report.rows[0]
        results = {**row.scenarios, "engine_parallel": row.scenarios["engine"]}
        settings = msgspec.structs.replace(report.settings, scenarios=scenarios)
        rows = [msgspec.structs.replace(row, scenarios=results)]
        show(msgspec.structs.replace(report, rows=rows, settings=settings))
        shown = capsys.readouterr().out
        assert shown.partition("─")[0].count(" engine") == columns
        assert (f" {row.scenarios['engine'].throughput.value:.4g}" in shown) == (columns > 0)


def test_accuracies_of_several_metrics_are_apart(
    report: Report, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    figures = {"mask_mAP": 0.625, "mAP": 0.3125}
    copy = msgspec.convert(msgspec.to_builtins(report), Report)
    copy.rows[0].accuracy = Accuracy(metric="mask_mAP", value=0.625, figures=figures)
    copy.rows[1].accuracy = Accuracy(metric="mAP", value=0.375, figures={"mAP": 0.375})
    show(copy)
    shown = capsys.readouterr().out
    assert re.search(r" mAP +mask_mAP ", shown)
    assert re.search(r"0\.3125 +0\.6250 ", shown)
    assert re.search(r"0\.3750 +– ", shown)
    page = html_report(copy)
    assert "0.3750 <small>mAP</small>" in page
    assert "<td>0.6250</td>" in page
    assert "COCO mAP, IoU 0.5 to 0.95" in page
    assert "mAP 0.31250, 0 samples" in page
    copy.rows[1].accuracy = Accuracy(metric="mAP", value=None, note="it could not be measured")
    show(copy)
    assert re.search(r"images/s +mask_mAP ", capsys.readouterr().out), "a metric without a value has no column"


def test_the_remark_on_other_load_has_the_maximum_of_each_kind(report: Report) -> None:
    copy = msgspec.convert(msgspec.to_builtins(report), Report)
    idle = Contention(
        seconds=1.0, others=None, steal=None, run_delay=None, throttled=None, load=None, disturbed=True
    )  # fmt: skip
    copy.rows[0].contention = msgspec.structs.replace(idle, others=0.06, steal=0.0, throttled=0.0)
    copy.rows[1].contention = msgspec.structs.replace(idle, others=0.01, steal=0.3, throttled=0.9)
    (remark,) = (line for line in copy.remarks() if "other load" in line)
    assert remark == (
        "the machine had other load during 2 of 2 combinations (at worst 6% of the processors used by other processes, "
        "30.0% by other machines of the host, throttled by the control group for 0.9 s): they were slower than on an "
        "idle machine"
    )
    copy.rows[0].contention, copy.rows[1].contention = None, msgspec.structs.replace(idle, throttled=0.9)
    (remark,) = (line for line in copy.remarks() if "other load" in line)
    assert "1 of 2 combinations (at worst throttled by the control group for 0.9 s)" in remark
    assert 'data-tip="The machine had other load during the measurement">disturbed' in html_report(copy)


def test_html_stands_alone_and_is_well_formed(report: Report) -> None:
    report = msgspec.convert(msgspec.to_builtins(report), Report)
    report.rows[0].notes.append("a <remark>")
    page = html_report(report)
    assert len(page) < 1e6
    # Nothing comes from elsewhere; what is left are the names of SVG's vocabularies.
    assert not re.search(r"""(src|href)\s*=|url\(|@import|fetch\(""", page)
    assert set(re.findall(r"""https?://[^"'\s]+""", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "a &lt;remark&gt;" in page
    plots = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(plots) == 3
    for plot in plots:
        ET.fromstring(plot)
    marks = [mark for mark in ET.fromstring(plots[0]).iter() if mark.get("aria-roledescription") == "symbol mark"]
    fills = sorted(str(mark.get("fill")) for mark in marks)
    assert fills == ["var(--c0)", "var(--c1)", "var(--card)", "var(--card)"]  # two discs and two rings
    assert {str(mark.get("aria-label")).splitlines()[1] for mark in marks} == {"one call after another", "offline"}
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data[1].replace("<\\/", "</")) == report.as_dict()
    assert "&#39;cuda:99&#39;" in page


def test_a_row_of_a_gpu(report: Report) -> None:
    """A row as on a GPU: its device in each label, the device's memory, and a call that is timed as a whole."""
    copy = msgspec.convert(msgspec.to_builtins(report), Report)
    row = copy.rows[0]
    assert row.memory is not None
    assert row.loading is not None
    row.ran["device"], row.stages_ms = "cuda:0", {"whole": 8.0}
    row.memory = msgspec.structs.replace(row.memory, device_peak_bytes=712_000_000)
    row.loading = msgspec.structs.replace(
        row.loading, cached_seconds=0.5, cold_first_run_seconds=3.25, cached_first_run_seconds=0.125
    )
    row.energy = Energy(images_per_joule=median_of_rounds([12.25, 12.5, 12.75]), source="NVML", scenario="multi_stream")
    without = html_report(report)
    assert ("<th>device MB</th>" in without, "<th>images/J</th>" in without) == (False, False)
    page = html_report(copy)
    assert "<th>device MB</th>" in page
    assert "onnxruntime@cuda:0 fp32 batch 2" in page
    assert "whole: 4 ms an image" in page
    assert "<td>712</td>" in page
    assert "12.5 <small>images/J</small>" in page
    assert "0.50<small>+ 0.12</small>" in page
    assert next(csv.DictReader(io.StringIO(copy.csv())))["stage_whole_ms"] == "8.0"


def changed(report: Report, factor: float) -> Report:
    """The report with all of its first row's times longer by a factor."""
    copy = msgspec.convert(msgspec.to_builtins(report), Report)
    row = copy.rows[0]
    for name, result in row.scenarios.items():
        slower = {
            key: entry and msgspec.structs.replace(
                entry, value=entry.value * factor, rounds=[v * factor for v in entry.rounds]
            )
            for key, entry in result.latency_ms.items()
        }  # fmt: skip
        throughput = median_of_rounds([v / factor for v in result.throughput.rounds])
        row.scenarios[name] = msgspec.structs.replace(result, latency_ms=slower, throughput=throughput)
    return copy


def test_comparing_reports(report: Report) -> None:
    same = compare_reports(report, report)
    assert not same.moved
    assert not same.slower
    assert not same.other_machine
    slower = compare_reports(report, changed(report, 10))
    assert {c.figure for c in slower.slower} >= {"multi_stream images/s", "multi_stream p50 ms", "engine images/s"}
    assert {c.row for c in slower.moved} == {report.rows[0].name}
    quicker = compare_reports(changed(report, 10), report)
    assert not quicker.slower
    assert {c.verdict for c in quicker.moved} == {"faster"}
    # Beyond the noise alone is not enough: it has to matter.
    assert not compare_reports(report, changed(report, 10), threshold=20).moved


def test_comparing_reports_that_have_other_rows(report: Report) -> None:
    short = msgspec.structs.replace(report, rows=report.rows[1:])
    assert [c.verdict for c in compare_reports(short, report).moved] == ["new"]
    assert [c.verdict for c in compare_reports(report, short).moved] == ["gone"]
    broken = msgspec.convert(msgspec.to_builtins(report), Report)
    broken.rows[0].status = "failed"
    assert [c.verdict for c in compare_reports(report, broken).slower] == ["fails now"]
    assert [c.verdict for c in compare_reports(broken, report).moved] == ["runs now"]


def test_comparing_reports_that_have_other_figures(report: Report) -> None:
    less = msgspec.convert(msgspec.to_builtins(report), Report)
    row = less.rows[0]
    result = row.scenarios["multi_stream"]
    row.scenarios["multi_stream"] = msgspec.structs.replace(result, latency_ms=result.latency_ms | {"p50": None})
    row.accuracy = None
    del row.scenarios["offline"]
    found = {change.figure: change.verdict for change in compare_reports(report, less).moved}
    assert found == {"offline images/s": "fails now", "multi_stream p50 ms": "gone", "agreement": "gone"}
    assert [change.figure for change in compare_reports(report, less).slower] == ["offline images/s"]
    assert {change.verdict for change in compare_reports(less, report).moved} == {"new"}
    less.settings = msgspec.structs.replace(less.settings, scenarios=["engine", "multi_stream"])
    assert not compare_reports(report, less).slower, "a scenario that was not requested does not fail"


def test_comparing_a_server_that_keeps_its_bound_with_one_that_does_not(report: Report) -> None:
    kept, late, few = (msgspec.convert(msgspec.to_builtins(report), Report) for _ in range(3))
    for one, keeps in ((kept, True), (late, False), (few, None)):
        scenarios = one.rows[0].scenarios
        scenarios["server"] = msgspec.structs.replace(scenarios["offline"], keeps_bound=keeps)
    assert [(c.figure, c.verdict) for c in compare_reports(kept, late).slower] == [
        ("server keeps its bound", "fails now")
    ]
    assert [c.verdict for c in compare_reports(late, kept).moved] == ["runs now"]
    assert not compare_reports(kept, few).moved


def test_comparing_reports_of_other_settings(report: Report) -> None:
    other = msgspec.structs.replace(report.settings, shapes={"x": [1, 3, 8, 8]}, wrapper={"conf": 0.5}, time=9.0)
    found = compare_reports(report, msgspec.structs.replace(report, settings=other))
    assert found.other_settings == ("wrapper", "shapes")
    assert compare_reports(report, report).other_settings == ()


def test_comparing_reports_of_another_clock_and_an_edited_file(report: Report) -> None:
    machine = report.machine | {"governor": "slow", "system": "another"}
    models = [msgspec.structs.replace(one, path="elsewhere") for one in report.models]
    models[0].bytes = 1
    found = compare_reports(report, msgspec.structs.replace(report, machine=machine, models=models))
    assert found.other_machine == ("system", "governor")
    assert found.other_settings == (models[0].name,)


def test_map_where_there_is_truth(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    annotations, images = coco_set(tmp_path)
    settings = msgspec.structs.replace(ONE_ROUND, data=str(images), annotations=str(annotations))
    (row,) = bench(combine([DETECTOR]), settings, loading=False).rows
    assert row.accuracy.metric == "mAP"
    assert row.accuracy.images == 3
    assert row.accuracy.value > 0.5
    assert row.scenarios["single_stream"].throughput.low is None  # one round tells nothing of how far off it is


def test_top1_where_there_are_labels(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(
        ONE_ROUND, data=str(crops(tmp_path)), labels="folder", wrapper={"preset": "unit", "resize": 32}
    )
    (row,) = bench(combine([CLASSIFIER]), settings, loading=False).rows
    assert (row.accuracy.metric, row.accuracy.images) == ("top1", 9)
    assert row.accuracy.value > 0.8


def test_arrays_of_several_inputs(tmp_path: Path) -> None:
    file = tmp_path / "two.onnx"
    file.write_bytes(contract_model("two"))
    (row,) = bench(combine([file], batches=[3]), ONE_ROUND, loading=False).rows
    assert row.status == "ok", row.reason
    assert row.ran["kind"] == "arrays"
    assert row.stages_ms.keys() == {"copy", "engine"}
    assert row.accuracy.value == pytest.approx(1)


def test_what_is_said_of_other_free_axes_and_fixed_batches(tmp_path: Path) -> None:
    free, fixed = tmp_path / "any.onnx", tmp_path / "fixed.onnx"
    free.write_bytes(contract_model("any_size"))
    fixed.write_bytes(contract_model("net", 2))
    for file, batch, words in (
        (free, 1, "has free axes; say how long they are: shape x="),
        (fixed, 1, "has a fixed batch of 2, not 1; export it with a free batch axis"),
    ):
        worker = Worker()
        worker.load(combine([file], batches=[batch])[0], ONE_ROUND)
        with pytest.raises(ConfigError, match=words):
            worker.prepare()
    worker.load(combine([fixed], batches=[2])[0], ONE_ROUND)
    for scenario in worker.prepare()["scenarios"]:
        assert worker.measure(scenario, 0.01).images >= 2
    name = infersdk.load(free).input_specs[0].name
    settings = msgspec.structs.replace(ONE_ROUND, shapes={name: [1, 3, 16, 16]})
    (row,) = bench(combine([free], batches=[2]), settings, accuracy=False, loading=False).rows
    assert row.status == "ok", row.reason
    assert row.notes[0].startswith("not run offline or as a server: ")


def test_outputs_that_are_not_numbers_do_not_agree(tmp_path: Path) -> None:
    inputs, outputs, weights = [array("x", [1, 4])], [array("y", [1, 4])], {"w": np.full(4, 100, np.float32)}
    plain, undefined = (
        save(tmp_path / f"{name}.onnx", [node("Sub", "x w", "d"), node(name, "d", "y")], inputs, outputs, weights)
        for name in ("Neg", "Log")
    )
    settings = msgspec.structs.replace(ONE_ROUND, time=0.01, warmup=0.01, scenarios=["engine"])
    for model, agreement in ((plain, 1.0), (undefined, 0.0)):
        worker = Worker()
        worker.load(combine([model])[0], settings)
        worker.prepare()
        found = worker.agreement(str(plain))
        assert found.value == pytest.approx(agreement)
        assert found.figures["argmax"] == agreement


def test_a_process_that_dies_is_a_row_and_the_others_go_on(net: Path) -> None:
    stages: list[str] = []

    def progress(stage: str, share: float, combination: str) -> None:
        stages.append(stage)
        assert 0 <= share <= 1
        assert combination.startswith("net.onnx onnxruntime batch")
        if stages.count("round 1 of 5") == 1 and stage == "round 1 of 5":
            children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
            workers = [int(c) for c in children if b"infersdk.bench.worker" in Path(f"/proc/{c}/cmdline").read_bytes()]
            os.kill(workers[0], signal.SIGKILL)

    rows = bench(combine([net], batches=[1, 2]), QUICK, accuracy=False, loading=False, progress=progress).rows
    assert sorted(row.status for row in rows) == ["failed", "ok"]
    dead = next(row for row in rows if row.status == "failed")
    assert dead.reason == "its process was ended by SIGKILL (out of memory?)"


def test_a_search_path_with_other_entries_than_text(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python ignores them."""
    monkeypatch.setattr("sys.path", [*sys.path, Path("elsewhere")])
    (row,) = bench(combine([net]), msgspec.structs.replace(ONE_ROUND, starts=1), accuracy=False).rows
    assert row.status == "ok", row.reason
    assert row.cold_start is not None


def test_a_step_that_takes_too_long_is_stopped(net: Path) -> None:
    (row,) = bench(combine([net]), msgspec.structs.replace(QUICK, timeout=0.05)).rows
    assert (row.status, row.reason) == ("failed", "load took longer than 0.05 s, and was stopped")


def test_interrupted(net: Path) -> None:
    def progress(stage: str, share: float, combination: str) -> None:
        if stage == "round 2 of 5":
            raise KeyboardInterrupt

    found = bench(combine([net, CLASSIFIER]), QUICK, loading=False, progress=progress)
    assert found.interrupted
    assert {row.status for row in found.rows} <= {"partial"}
    assert all(len(row.scenarios["single_stream"].throughput.rounds) == 1 for row in found.rows)
    assert any(line.startswith("interrupted") for line in found.remarks())
    page = html_report(found)
    assert "<h2>Combinations that failed or were interrupted</h2>" in page


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "nowhere"}, "no data at 'nowhere'"), ({"labels": "folder"}, "are of images: give their folder"),
        ({"data": ".", "labels": "x", "annotations": "y"}, "not both"),
        ({"data": ".", "annotations": "y.json"}, "cannot read the annotations"),
        ({"rounds": 0}, "rounds is 0, not an int >= 1"), ({"time": -1}, "time is -1, not a float > 0"),
        ({"data": Path("nowhere")}, "no data at 'nowhere'"), ({"data": 3}, "data is 3"),
    ],
)  # fmt: skip
def test_wrong_data(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bench(combine([DETECTOR]), BenchSettings(**settings))


def test_two_files_of_the_same_name_are_refused(tmp_path: Path) -> None:
    files = [tmp_path / folder / "net.onnx" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_bytes(contract_model("net"))
    for measure in (bench, tune):
        with pytest.raises(ConfigError, match="a/net.onnx' and .*b/net.onnx' have the same name.*rename one of them"):
            measure(combine(files))


def test_a_wrong_combination() -> None:
    with pytest.raises(ConfigError, match="batch is 0, not an int >= 1"):
        bench([Combination(model=str(DETECTOR), batch=0)], QUICK)


def test_an_empty_folder_and_a_missing_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is empty: it has neither images nor arrays"):
        bench(combine([DETECTOR]), BenchSettings(data=str(tmp_path)))
    with pytest.raises(ModelNotFoundError):
        bench(combine([tmp_path / "none.onnx"]))
    with pytest.raises(ModelNotFoundError, match="reference.onnx"):
        bench(combine([DETECTOR]), reference=str(tmp_path / "reference.onnx"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"budget": float("nan")}, "a budget is a number of seconds, not nan"),
        ({"budget": "1"}, "a budget is a number of seconds, not '1'"),
        ({"combinations": ["a"]}, "'a' is a str, not a Combination of infersdk.bench"),
        ({"settings": {"rounds": 1}}, "{'rounds': 1} is a dict, not a BenchSettings of infersdk.bench"),
    ],
)
def test_arguments_of_other_types(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bench(**{"combinations": combine([DETECTOR]), **wrong})


def test_the_wrapper_is_chosen_by_shapes() -> None:
    def kind(shape: tuple[Any, ...], *outputs: tuple[Any, ...], dtype: str = "float32") -> str:
        spec = infersdk.TensorSpec("x", np.dtype(dtype), shape)
        made = [infersdk.TensorSpec(f"y{i}", np.dtype("float32"), s) for i, s in enumerate(outputs)]
        return kind_of(ModelDescription("m.onnx", [spec], made, None, (), None, None, end_to_end=False))

    image = ("n", 3, 640, 640)
    assert kind(image, ("n", 25200, 85)) == "yolov5"
    assert kind(image, ("n", 84, 8400)) == "yolov8"
    assert kind(image, ("n", 300, 6)) == "end-to-end"
    assert kind(image, ("n", 300, 7)) == "arrays"
    assert kind(image, ("n", 1000)) == kind(image, ("n", 1000, 1, 1)) == "classifier"
    assert kind(image, ("n", 21, 640, 640)) == "arrays"
    assert kind(("n", 640, 640, 3), ("n", 1000), dtype="uint8") == "classifier"
    assert kind(("n", 80, 3000), ("n", 1000)) == "arrays"
    assert kind(("n", 16, 32, 32), ("n", 10)) == "arrays"


def test_backends_that_are_there() -> None:
    assert {"onnxruntime", "openvino"} <= set(usable_backends())
    assert usable_backends()[0] == "onnxruntime"
    if not infersdk.device_count():
        assert not [side for side in usable_backends() if "cuda" in side]


def test_a_gpu_is_measured_beside_the_processor() -> None:
    assert targets_of("onnxruntime", ("cpu", "cuda"), "cpu", gpu=True) == ["onnxruntime", "onnxruntime@cuda:0"]
    assert targets_of("onnxruntime", ("cpu", "cuda"), "cpu", gpu=False) == [
        "onnxruntime"
    ]  # made for it, and none there
    assert targets_of("openvino", ("CPU",), "cpu", gpu=True) == ["openvino"]
    assert targets_of("tensorrt-rtx", ("cuda:0", "cuda:1"), "cuda:0", gpu=True) == ["tensorrt-rtx"]
    assert targets_of("tensorrt-rtx", (), "cuda:0", gpu=False) == []


def test_a_fixed_batch_is_compared_on_whole_batches(tmp_path: Path) -> None:
    """A single image for a model of a batch of three: the other rows are of it too, and of nothing by chance."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(str(CLASSIFIER))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 3
    file = tmp_path / "fixed.onnx"
    onnx.save(model, str(file))
    worker, wrapper = Worker(), {"preset": "unit", "resize": 32}
    worker.load(combine([file], batches=[3])[0], msgspec.structs.replace(ONE_ROUND, wrapper=wrapper))
    worker.prepare()
    (sample,) = worker._work.samples()
    (rows,) = sample.values()
    assert len(rows) == 3
    assert (rows == rows[0]).all()
