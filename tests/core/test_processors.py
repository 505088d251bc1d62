"""The processors of the machine, and the number that a process may use."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx_models
import pytest

from infersdk.core import processors
from infersdk.core.processors import available_processors, fits_quotas, processor_digest, runtime_threads

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = """\
33 32 0:27 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
34 32 0:28 / /sys/fs/cgroup/cpuset rw - cgroup c rw,cpuset
"""


COUNT = "from infersdk.core.processors import available_processors; print(available_processors())"


@pytest.fixture(autouse=True)
def sixteen_processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processors, "_ROOT", tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 16, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)


def tree(root: Path, mounts: str, membership: str, **files: str) -> None:
    """A file system with these control groups."""
    written = {"proc/self/mountinfo": mounts, "proc/self/cgroup": membership}
    for name, text in (written | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())  # also on Windows with the line breaks of Linux


@pytest.mark.parametrize(
    ("quota", "count"),
    [("max 100000", 16), ("50000 100000", 1), ("100000 100000", 1), ("150000 100000", 2), ("999999 10000", 16)],
)
def test_the_quota_of_a_container_with_version_2(tmp_path: Path, quota: str, count: int) -> None:
    tree(tmp_path, V2, "0::/\n", **{"sys/fs/cgroup/cpu.max": f"{quota}\n"})
    assert available_processors() == count
    assert fits_quotas(2) == (not quota.startswith(("50000 ", "100000 ", "150000 ")))


def test_the_smallest_quota_of_all_groups_above(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/a/cpu.max": "300000 100000",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000",
        "sys/fs/cgroup/a/b/c/cpu.max": "700000 100000",
    }
    tree(tmp_path, V2, "0::/a/b/c\n", **files)
    assert available_processors() == 3


@pytest.mark.parametrize(
    ("mounted", "membership"),
    [("/", "/docker/12"), ("/docker/12", "/docker/12"), ("/../..", "/docker/12")],
    ids=["of the machine", "of the group", "of another namespace"],
)
def test_version_1_as_docker_mounts_it(tmp_path: Path, mounted: str, membership: str) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct" + (membership if mounted == "/" else "")
    tree(
        tmp_path, V1.format(root=mounted),
        f"5:cpuset:/elsewhere\n4:cpu,cpuacct:{membership}\n0::/\n",
        **{f"{folder}/cpu.cfs_quota_us": "250000\n", f"{folder}/cpu.cfs_period_us": "100000\n"},
    )  # fmt: skip
    assert available_processors() == 3
    (tmp_path / folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert available_processors() == 16


@pytest.mark.posix
def test_names_of_mounts_and_groups_are_any_bytes(tmp_path: Path) -> None:
    tree(tmp_path, "", "", **{"sys/fs/cgroup/cpu.max": "300000 100000"})
    proc = tmp_path / "proc/self"
    other = b"29 23 0:25 / /mnt/caf\xe9\x0c\xc2\x85 rw - tmpfs none rw\n"
    proc.joinpath("mountinfo").write_bytes(other + V2.encode())
    proc.joinpath("cgroup").write_bytes(b"1:name=x:/caf\xe9\x0cgroup\n0::/\n")
    assert available_processors() == 3


def test_without_control_groups() -> None:
    assert available_processors() == 16


@pytest.mark.parametrize(("value", "count"), [("3", 3), ("4,2", 4), (" 5 ", 5), ("64", 16), ("0", 16), ("x", 16)])
def test_the_variable_of_openmp(monkeypatch: pytest.MonkeyPatch, value: str, count: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert available_processors() == count


def test_a_runtime_chooses_where_nothing_limits_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (runtime_threads(0), runtime_threads(7)) == (0, 7)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert (runtime_threads(0), runtime_threads(7)) == (5, 7)


def test_a_runtime_has_its_threads_told_under_a_quota_as_large_as_the_machine(tmp_path: Path) -> None:
    """Its own choice would pin one thread to each processor."""
    tree(tmp_path, V2, "0::/\n", **{"sys/fs/cgroup/cpu.max": "1550000 100000"})
    assert runtime_threads(0) == 16


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity")
def test_the_affinity_of_a_process() -> None:
    code = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
    assert in_a_process(code + COUNT) == 1


@contextlib.contextmanager
def control_group(quota: float) -> Iterator[str]:
    """A real one; the code with which a process enters it."""
    if sys.platform != "linux":
        pytest.skip("needs Linux")
    group = Path(f"/sys/fs/cgroup/cpu/infersdk-test-{os.getpid()}-{quota}")
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text(str(int(quota * 100_000)))
    except OSError as error:
        pytest.skip(f"needs a control group of version 1 that may be made: {error}")
    try:
        yield f"import os, pathlib; pathlib.Path({str(group / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
    finally:
        group.rmdir()


@pytest.mark.parametrize(("quota", "count"), [(0.5, 1), (1.0, 1), (1.5, 2)])
def test_a_real_control_group(quota: float, count: int) -> None:
    with control_group(quota) as enter:
        assert in_a_process(enter + COUNT) == min(count, len(os.sched_getaffinity(0)))


@pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
@pytest.mark.parametrize("quota", [1.5, 2.0])
def test_threads_spin_where_the_quota_is_for_all_of_them(quota: float, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = onnx_models.double(tmp_path / "m.onnx")
    code = (
        f"import infersdk; options = infersdk.load({str(path)!r}, threads=2)._session.get_session_options()\n"
        "try: print(options.get_session_config_entry('session.intra_op.allow_spinning'))\n"
        "except RuntimeError: print(1)\n"
    )
    with control_group(quota) as enter:
        assert in_a_process(enter + code) == int(quota >= 2)


def in_a_process(code: str) -> int:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd="/")
    return int(done.stdout)


def test_the_digest_of_processors(tmp_path: Path) -> None:
    """It depends on the model and on the features, and not on what changes while the machine runs."""
    path = tmp_path / "proc/cpuinfo"
    path.parent.mkdir()
    digests = []
    for model, flags, clock in (("A", "avx2", 1), ("A", "avx2", 2), ("B", "avx2", 1), ("A", "avx2 amx_tile", 1)):
        path.write_text(f"model name\t: {model}\ncpu MHz\t\t: {clock}\nflags\t\t: {flags}\n\n" * 2)
        digests.append(processor_digest.__wrapped__())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    path.write_text("Features\t: asimd\nCPU part\t: 0xd0c\n")
    assert processor_digest.__wrapped__() not in digests
    path.unlink()
    assert processor_digest.__wrapped__()
