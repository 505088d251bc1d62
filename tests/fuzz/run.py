"""Runs the harnesses: those in C, which reach the core under sanitizers, and those in Python.

    python tests/fuzz/run.py                                    # each for 20 s
    python tests/fuzz/run.py --seconds 3600 images fuzz_decode   # two of them for an hour
    python tests/fuzz/run.py --seed 7 --first 1234 --cases 1 images

A case depends on the seed and its number alone. Each harness runs in a process of its own, which is watched: a case is
a finding if it raises an error that is not the package's, takes too long, or ends the process. The exit code is 1 then.
Runtimes that crash on a damaged model are counted apart: a model is code for its runtime.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import mmap
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent)]

from native_programs import NATIVE, build_program  # noqa: E402

__all__ = ["NATIVE_HARNESSES", "Outcome", "run_native", "run_python"]

NATIVE_HARNESSES = sorted(path.stem for path in (HERE / "native").glob("fuzz_*.c"))
SANITIZERS = "address,undefined"
#: Seconds without progress after which a process counts as hanging.
HANG = 120.0
#: Bytes of address space that a Python harness may use.
MEMORY = 16 << 30
_STATE = struct.Struct("<QQQQB")  # case, done, accepted, refused, in a runtime


@dataclass
class Outcome:
    """What a harness did.

    Attributes:
        cases: how many ran.
        accepted, refused: of these (in C: of their calls).
        findings: what went wrong, each with how to repeat it.
        runtime_crashes: numbers of the cases that ended a vendor's runtime.
    """

    name: str
    cases: int = 0
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)
    runtime_crashes: list[int] = field(default_factory=list)


def main() -> int:
    from targets import TARGETS

    known = [*NATIVE_HARNESSES, *TARGETS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("harness", nargs="*", choices=[*known, []], metavar="HARNESS", help=", ".join(known))
    parser.add_argument("--seconds", type=float, default=20.0, help="for each (default: %(default)g); 0 is no limit")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (default: %(default)s)")
    parser.add_argument("--cases", type=int, default=2**40, help="at most so many")
    parser.add_argument("--jobs", type=int, default=2, help="harnesses side by side (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return _work(*arguments.worker, arguments.seed, arguments.first, arguments.cases, arguments.seconds)

    def one(name: str) -> Outcome | None:
        return (run_native if name in NATIVE_HARNESSES else run_python)(
            name, seed=arguments.seed, first=arguments.first, cases=arguments.cases, seconds=arguments.seconds
        )

    bad = False
    outcomes = []
    with ThreadPoolExecutor(max(arguments.jobs, 1)) as pool:
        for name, outcome in zip(arguments.harness or known, pool.map(one, arguments.harness or known), strict=True):
            if outcome is None:
                print(f"{name}: left out: what it needs is not there", flush=True)
                continue
            outcomes.append(outcome)
            crashes = f", {len(outcome.runtime_crashes)} ended the runtime" if outcome.runtime_crashes else ""
            print(
                f"{name}: {outcome.cases:,} cases in {outcome.seconds:.0f} s, {outcome.accepted:,} accepted, "
                f"{outcome.refused:,} refused{crashes}, {len(outcome.findings)} findings", flush=True,
            )  # fmt: skip
            for finding in outcome.findings:
                print(f"    {finding}", flush=True)
            bad = bad or bool(outcome.findings)
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(outcome) for outcome in outcomes], indent=2) + "\n")
    return 1 if bad else 0


# ---- harnesses in C ----


def run_native(
    name: str, *, seed: int = 1, first: int = 0, cases: int = 2**40, seconds: float = 0.0, folder: Path | None = None
) -> Outcome | None:
    """Compiles and runs a harness under the address and undefined-behaviour sanitizers; None without a compiler.

    Args:
        folder: where the program is kept from one call to the next.
    """
    with tempfile.TemporaryDirectory() as scratch:
        sources = [path.stem for path in sorted((NATIVE / "src").glob("*.c")) if not path.stem.startswith("custom_ops")]
        command = build_program(folder or Path(scratch), HERE / "native" / f"{name}.c", SANITIZERS, sources)
        if isinstance(command, str):
            return None
        outcome = Outcome(name)
        start = time.monotonic()
        options = {"ASAN_OPTIONS": "allocator_may_return_null=1"}  # the core answers an allocation that is too large
        done = subprocess.run(
            [*command, str(seed), str(first), str(cases), str(seconds), scratch], check=False, capture_output=True,
            text=True, env=os.environ | options, errors="replace",
        )  # fmt: skip
        outcome.seconds = time.monotonic() - start
        if done.returncode == 0:
            words = done.stdout.split()
            outcome.cases, outcome.accepted, outcome.refused = int(words[0]), int(words[2]), int(words[4])
        else:
            outcome.findings.append(f"exit code {done.returncode}: {done.stderr[-3000:]}")
        return outcome


# ---- harnesses in Python ----


def run_python(
    name: str, *, seed: int = 1, first: int = 0, cases: int = 2**40, seconds: float = 0.0
) -> Outcome | None:  # fmt: skip
    """Runs a target in processes of its own; None without the package that it needs.

    After a case that ended its process the next process goes on behind it.
    """
    from targets import TARGETS

    if TARGETS[name].needs and importlib.util.find_spec(TARGETS[name].needs) is None:
        return None
    outcome = Outcome(name)
    start = time.monotonic()
    last = first + cases
    while first < last and len(outcome.findings) < 5:
        left = seconds - (time.monotonic() - start)
        if seconds and left <= 0:
            break
        first = _one_process(outcome, name, seed, first, last - first, left if seconds else 0.0)
    outcome.seconds = time.monotonic() - start
    return outcome


def _one_process(outcome: Outcome, name: str, seed: int, first: int, cases: int, seconds: float) -> int:
    """Adds to the outcome what one process did; returns the number of the case to go on with."""
    with tempfile.NamedTemporaryFile() as state:
        state.write(bytes(_STATE.size))
        state.flush()
        command = [
            sys.executable, str(HERE / "run.py"), "--worker", name, state.name, "--seed", str(seed),
            "--first", str(first), "--cases", str(cases), "--seconds", str(seconds),
        ]  # fmt: skip
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
            hangs = _watch(process, Path(state.name))
            errors.seek(0)
            text = errors.read()
        case, done, accepted, refused, in_runtime = _STATE.unpack(Path(state.name).read_bytes())
    outcome.cases += done
    outcome.accepted += accepted
    outcome.refused += refused
    if process.returncode == 0 and not hangs:
        return first + cases  # its time is over, or its cases are done
    if in_runtime:
        outcome.runtime_crashes.append(case)
        return int(case) + 1
    again = f"python tests/fuzz/run.py {name} --seed {seed} --first {case} --cases 1 --seconds 0"
    why = f"no progress for {HANG:g} s" if hangs else f"exit code {process.returncode}"
    outcome.findings.append(f"case {case}: {why}; repeat it: {again}\n{text[-3000:]}")
    return int(case) + 1


def _watch(process: subprocess.Popen[bytes], state: Path) -> bool:
    """Waits for the process; kills it, and returns True, when it stays at one case for too long."""
    seen, since = b"", time.monotonic()
    while True:
        try:
            process.wait(1.0)
            return False
        except subprocess.TimeoutExpired:
            now = state.read_bytes()
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > HANG:
                process.kill()
                process.wait()
                return True


def _work(name: str, state_file: str, seed: int, first: int, cases: int, seconds: float) -> int:
    """The process of a target: one case after another; ends with 1 at a finding."""
    import targets

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with open(state_file, "r+b") as file:
        state = mmap.mmap(file.fileno(), _STATE.size)
    counts = [0, 0, 0]  # done, accepted, refused
    case = first

    def note(in_runtime: bool = False) -> None:
        state[:] = _STATE.pack(case, *counts, in_runtime)

    targets.entering_runtime = note
    end = time.monotonic() + seconds if seconds else float("inf")
    limit = targets.TARGETS[name].seconds
    for case in range(first, first + cases):
        if time.monotonic() >= end:
            break
        note()
        start = time.process_time()
        try:
            good = targets.run(name, random.Random(f"{seed}:{case}"))
        except BaseException:
            traceback.print_exc()
            return 1
        spent = time.process_time() - start
        if spent > limit and case > first:  # the first one imports
            print(f"the case took {spent:.1f} s of processor time; {limit:g} s are allowed", file=sys.stderr)
            return 1
        counts[0] += 1
        counts[1 if good else 2] += 1
    note()
    return 0


if __name__ == "__main__":
    sys.exit(main())
