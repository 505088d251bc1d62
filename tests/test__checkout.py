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


def test_python_in_the_checkout_imports_the_installed_package(tmp_path: Path) -> None:
    code = """
import pickle, infersdk, infersdk.models, infersdk.core.tensor
from infersdk import Tensor, errors
assert infersdk.core.tensor.Tensor is Tensor
assert pickle.loads(pickle.dumps(errors.ConfigError)) is errors.ConfigError
print(infersdk.__file__, infersdk.models.__file__)
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout == subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    assert str(ROOT / "infersdk") not in done.stdout


def test_the_command_line_as_a_module_runs_in_the_checkout() -> None:
    done = run("-m", "infersdk", "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("infersdk ")


def test_without_an_installed_one_it_says_how_to_install_it() -> None:
    done = run("-S", "-c", "import infersdk", PYTHONPATH="")
    line = done.stderr.splitlines()[-1]
    assert "is source code without the compiled core of infersdk; build and install it: pip install -e ." in line


def test_pytest_as_a_module_tests_the_installed_one() -> None:
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/core/test_target.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_pytest_without_an_installed_one_stops_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "infersdk").mkdir()
    (tmp_path / "infersdk" / "__init__.py").write_text("raise ImportError('no core')")
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/core/test_target.py", PYTHONPATH=str(tmp_path))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    output = done.stdout + done.stderr
    assert "infersdk cannot be imported" in output
    assert 'Install it first: pip install -e ".[cpu,test]"' in output
    assert "Traceback" not in output
    assert len(output.splitlines()) < 6
