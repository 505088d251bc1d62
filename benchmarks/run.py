"""Runs the benchmarks, and writes their results: docs/benchmarks/results.json, and results.md from it.

    python benchmarks/run.py [bench_infer.py ...] [--output FOLDER]
    python benchmarks/table.py              # then: README's table, from the results

Each file runs in a process of its own, one after another. The results keep what a benchmark prints; of those that
pytest-benchmark times, the median and the spread; and of a benchmark that skips or fails, the reason. Run it while the
machine does nothing else: what else it did is in the results. Where some files are named, earlier results of the others
stay, if they are of the same machine and packages; each says when it was measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from infersdk.bench.machine import Contention, Load, describe_machine

HERE = Path(__file__).resolve().parent
SCHEMA = 1


def run_file(file: Path, timeout: float) -> dict[str, Any]:
    """The tests of one file, each with its outcome."""
    with tempfile.TemporaryDirectory() as folder:
        report, times = Path(folder, "report.xml"), Path(folder, "times.json")
        command = [
            *(sys.executable, "-P", "-m", "pytest", str(file), "-q", "-p", "no:cacheprovider"),
            *(f"--timeout={timeout:g}", f"--junitxml={report}", f"--benchmark-json={times}"),
            *("-o", "junit_logging=system-out"),
        ]
        start = perf_counter()
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=HERE.parent)
        seconds = perf_counter() - start
        if not report.exists():
            return {"seconds": seconds, "error": (done.stdout + done.stderr)[-2000:], "tests": []}
        tests = [_test(case) for case in ET.parse(report).getroot().iter("testcase")]
        timed = _timed(times)
    for test in tests:
        if test["name"] in timed:
            test["time"] = timed[test["name"]]
    return {"seconds": seconds, "tests": tests}


def _test(case: ET.Element) -> dict[str, Any]:
    outcome, reason = "passed", ""
    for kind, name in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
        if (entry := case.find(kind)) is not None:
            outcome, reason = name, (entry.get("message") or "").strip()
    claims = [json.loads(p.get("value", "")) for p in case.iter("property") if p.get("name") == "claim"]
    printed = case.findtext("system-out") or ""
    lines = [line.strip() for line in printed.splitlines() if line.strip() and not line.startswith("---")]
    return {"name": case.get("name"), "outcome": outcome, "reason": reason, "printed": lines, "claims": claims}


def _timed(path: Path) -> dict[str, dict[str, Any]]:
    """What pytest-benchmark says, in seconds, by the name of the test."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    keys = ("median", "iqr", "min", "rounds")
    return {
        entry["name"]: {"group": entry["group"], **{key: entry["stats"][key] for key in keys}}
        for entry in data.get("benchmarks", [])
    }


def markdown(results: dict[str, Any]) -> str:
    """A table for each file."""
    machine = results["machine"]
    facts = [
        f"{machine['processor']}, {machine['cores']} cores", *machine["gpus"], machine["system"],
        f"Python {machine['python']}", f"infersdk {machine['infersdk']}",
        *(f"{name} {version}" for name, version in machine["packages"].items()),
    ]  # fmt: skip
    when = results["created"][:16].replace("T", " ")
    head = f"Written by `python benchmarks/run.py`, {when} UTC: {', '.join(facts)}."
    lines = ["# Results of the benchmarks", "", head, ""]
    for name, file in results["files"].items():
        others = file["contention"]["others"]
        busy = f"; other processes had {others:.0%} of the processors" if others is not None else ""
        stamp = f"{file['created'][:16].replace('T', ' ')} UTC, {file['seconds']:.0f} s{busy}."
        lines += [f"## {name}", "", stamp, "", "| what | result |", "|---|---|"]
        if file.get("error"):
            lines.append(f"| the file | {_cell(file['error'].splitlines()[-1])} |")
        for test in file["tests"]:
            parts = list(test["printed"])
            if time := test.get("time"):
                parts.append(f"median {_seconds(time['median'])}, IQR {_seconds(time['iqr'])}, {time['rounds']} rounds")
            if test["outcome"] != "passed":
                parts.append(f"{test['outcome']}: {test['reason'].splitlines()[0] if test['reason'] else ''}")
            lines.append(f"| `{test['name']}` | {'<br>'.join(map(_cell, parts))} |")
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _kept(path: Path, machine: dict[str, Any]) -> dict[str, Any]:
    """The files of earlier results of this machine."""
    try:
        earlier = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    same = earlier.get("schema") == SCHEMA and earlier.get("machine") == json.loads(json.dumps(machine))
    return dict(earlier["files"]) if same else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="names of files here (default: all of them)")
    parser.add_argument("--output", type=Path, default=HERE.parent / "docs" / "benchmarks", metavar="FOLDER")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one benchmark (default: %(default)g)")
    arguments = parser.parse_args()
    files = [HERE / name for name in arguments.files] or sorted(HERE.glob("bench_*.py"))
    if missing := [file.name for file in files if not file.is_file()]:
        parser.error(
            f"no benchmark {missing[0]!r}; there are {', '.join(f.name for f in sorted(HERE.glob('bench_*.py')))}"
        )
    machine = describe_machine()
    results: dict[str, Any] = {
        "kind": "infersdk-benchmarks", "schema": SCHEMA, "created": _now(), "machine": machine,
        "files": _kept(arguments.output / "results.json", machine) if arguments.files else {},
    }  # fmt: skip
    arguments.output.mkdir(parents=True, exist_ok=True)
    for file in files:
        print(f"{file.name} ...", flush=True)
        load = Load()
        measured = run_file(file, arguments.timeout)
        contention: Contention = load.since()
        results["files"][file.name] = {"created": _now(), "contention": msgspec.to_builtins(contention), **measured}
        results["files"] = dict(sorted(results["files"].items()))
        results["created"] = _now()
        for test in measured["tests"]:
            print(f"    {test['outcome']:8} {test['name']}")
        # After each file, so that nothing is lost when it is stopped.
        (arguments.output / "results.json").write_text(json.dumps(results, indent=2) + "\n")
        (arguments.output / "results.md").write_text(markdown(results))
    print(f"written: {arguments.output / 'results.json'} and results.md")
    entries = results["files"].values()
    failed = [test for entry in entries for test in entry["tests"] if test["outcome"] == "failed"]
    return 1 if failed or any(entry.get("error") for entry in entries) else 0


if __name__ == "__main__":
    sys.exit(main())
