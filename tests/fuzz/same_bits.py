"""Runs the harnesses in C for each platform that runs here, and compares the sums of the hashes of their results.

    python tests/fuzz/same_bits.py                               # 1,000 cases of each harness
    python tests/fuzz/same_bits.py --cases 1000000 fuzz_masks

Each harness compares all SIMD variants with plain C in its own process. So equal sums mean the same bits from plain C,
AVX2 and AVX-512 on Linux and Windows, and from plain C and NEON on aarch64. ziglang compiles for all of them; qemu runs
aarch64, and wine runs Windows.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent)]

from native_programs import NATIVE, RUNNERS, build_program  # noqa: E402

#: The harnesses that print sums.
HARNESSES = ("fuzz_preprocess", "fuzz_decode", "fuzz_masks", "fuzz_numbers", "fuzz_oriented", "fuzz_class_map",
             "fuzz_track")  # fmt: skip


def sums(name: str, target: str, cases: int, folder: Path, seed: int = 1) -> str:
    """The lines that a harness prints for a target; or why it cannot run here."""
    sources = [path.stem for path in sorted((NATIVE / "src").glob("*.c")) if not path.stem.startswith("custom_ops")]
    command = build_program(folder, HERE / "native" / f"{name}.c", "", sources, "-O2", target)
    if isinstance(command, str):
        return command
    done = subprocess.run(
        [*command, str(seed), "0", str(cases), "0", str(folder)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{name} for {target}: {done.stdout}{done.stderr}"
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", default=HARNESSES, metavar="HARNESS")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keeps the programs for the next run")
    arguments = parser.parse_args()
    equal = True
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(len(RUNNERS)) as pool:
        folder = arguments.folder or Path(scratch)
        folder.mkdir(exist_ok=True)
        for name in arguments.names:
            jobs = {t: pool.submit(sums, name, t, arguments.cases, folder, arguments.seed) for t in RUNNERS}
            found = {target: job.result() for target, job in jobs.items()}
            missing = [target for target, text in found.items() if " cases, " not in text]
            equal = equal and not missing and len(set(found.values())) == 1
            for target, text in found.items():
                print(f"{name} {target}: {', '.join(text.split(chr(10)))}", flush=True)
    print("equal" if equal else "DIFFERENT, or not run on each target")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
