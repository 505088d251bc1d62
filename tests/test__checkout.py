"""Running from the root of a checkout, whose package has no compiled core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(
    any((ROOT / "infersdk").glob("_native*.so")), reason="the core was built into this checkout"
)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=120
    )


def test_importing_it_there_says_what_to_do_instead() -> None:
    done = run("-c", "import infersdk")
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("ImportError: Python found ")
    assert line.endswith("before the installed infersdk; run Python in another folder, or as python -P")
    assert str(ROOT / "infersdk") in line
    assert run("-P", "-c", "import infersdk").returncode == 0


def test_without_an_installed_one_it_says_how_to_install_it() -> None:
    done = run("-S", "-c", "import infersdk", PYTHONPATH="")
    line = done.stderr.splitlines()[-1]
    assert "is source code without the compiled core of infersdk; build and install it: pip install -e ." in line


def test_pytest_as_a_module_tests_the_installed_one() -> None:
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/core/test_target.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_pytest_without_an_installed_one_stops_with_one_message(tmp_path: Path) -> None:
    """A package of that name without a core stands for none at all, since the others are needed to get there."""
    (tmp_path / "infersdk" / "core").mkdir(parents=True)
    for name in ("__init__.py", "core/__init__.py", "core/_lib.py", "errors.py", "_checkout.py"):
        (tmp_path / "infersdk" / name).write_bytes((ROOT / "infersdk" / name).read_bytes())
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/core/test_target.py", PYTHONPATH=str(tmp_path))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    output = done.stdout + done.stderr
    assert "infersdk cannot be imported" in output
    assert 'Install it first: pip install -e ".[cpu,test]"' in output
    assert "Traceback" not in output
    assert len(output.splitlines()) < 6
