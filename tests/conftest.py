"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import numpy as np
import pytest
from rtsp import RtspServer

ROOT = Path(__file__).resolve().parent.parent

# The tests are of the installed package. `python -m pytest` puts the checkout in front of it.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
try:
    import infersdk  # noqa: F401
except ImportError as error:
    pytest.exit(
        f'infersdk cannot be imported ({error}). Install it first: pip install -e ".[cpu,test]"',
        returncode=pytest.ExitCode.USAGE_ERROR,
    )

# Where SIGINT is ignored (nohup, a background job of a script), children would ignore it, too, and no test of Ctrl-C
# could pass. A handler of Python becomes the default action in a child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from simd_variants import VARIANTS, variant, variant_name  # noqa: E402 - imports infersdk, so after the check

from infersdk import device_count  # noqa: E402

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

#: Seconds of a test that needs a GPU. The longest builds engines for half a minute.
GPU_TIMEOUT = 120


def _workers() -> int:
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of test data; the test skips where there is none."""
    folder = Path(os.environ.get("INFERSDK_ASSETS", ROOT.parent / "shared" / "assets"))
    if not folder.is_dir():
        pytest.skip("no test data: set INFERSDK_ASSETS to its folder")
    return folder


@pytest.fixture(scope="session")
def int8_yolov5n(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """yolov5n in 8 bits for ONNX Runtime, calibrated with two images."""
    for package in ("onnx", "onnx_ir", "onnxruntime"):
        pytest.importorskip(package)
    from PIL import Image

    from infersdk import quant

    samples = []
    for name in ("bus.jpg", "zidane.jpg"):
        with Image.open(assets / "images" / name) as image:
            pixels = np.asarray(image.convert("RGB").resize((640, 640)), np.float32) / 255
        samples.append({"images": np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])})
    model, path = assets / "models" / "yolov5n.onnx", tmp_path_factory.mktemp("int8") / "yolov5n.onnx"
    table = quant.calibrate(model, samples, target="onnxruntime", method="minmax", min_samples=2)
    return quant.quantize(model, path, table, target="onnxruntime").path


@pytest.fixture(scope="session", autouse=True)
def no_spinning_threads_in_parallel() -> Iterator[None]:
    """Under xdist the idle threads of ONNX Runtime sleep: those of one worker would take the processors from another.

    Each model is loaded as with `allow_spinning=False`, which changes no result; so are the sessions that tests make of
    the runtime itself. A single process leaves the default.
    """
    if _workers() == 1:
        yield
        return
    try:
        from infersdk.backends import onnxruntime
    except ImportError:
        yield
        return
    import onnxruntime as runtime

    session_options, make = onnxruntime.session_options, runtime.InferenceSession.__init__

    def quiet(options: onnxruntime.Options, *rest: Any) -> Any:
        return session_options(msgspec.structs.replace(options, allow_spinning=False), *rest)

    def make_quiet(session: Any, model: Any, sess_options: Any = None, **more: Any) -> None:
        options = sess_options or runtime.SessionOptions()
        key = "session.intra_op.allow_spinning"
        try:
            options.get_session_config_entry(key)
        except RuntimeError:  # not set yet: older releases warn of an entry that is set again
            options.add_session_config_entry(key, "0")
        make(session, model, options, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime, "session_options", quiet)
        patch.setattr(runtime.InferenceSession, "__init__", make_quiet)
        yield


@pytest.fixture(autouse=True)
def levels_of_loggers() -> Iterator[None]:
    """Packages that a test imports may set the level of the root logger; the next test has the level of before."""
    loggers = [logging.getLogger(name) for name in ("", "infersdk")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    """The garbage collector does not run during the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """The file net.onnx with the network of that name of the contract of backends."""
    from infersdk.testing import contract_model

    path = tmp_path / "net.onnx"
    path.write_bytes(contract_model("net"))
    return path


@pytest.fixture
def rng() -> np.random.Generator:
    """A random generator whose seed a failing test shows (INFERSDK_SEED repeats it)."""
    seed = int(os.environ.get("INFERSDK_SEED", np.random.SeedSequence().entropy % 2**32))  # type: ignore[operator]
    print(f"INFERSDK_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def rtsp() -> Iterator[RtspServer]:
    """A camera: an RTSP server that sends a test pattern without end. The test skips without GStreamer."""
    server = RtspServer()
    yield server
    server.stop()


@pytest.fixture(params=VARIANTS, ids=variant_name)
def simd(request: pytest.FixtureRequest) -> Iterator[int]:
    """Each SIMD variant of this processor: the test runs once with each."""
    with variant(request.param):
        yield request.param


def pytest_configure(config: pytest.Config) -> None:
    """The tests, their processes and the workers of xdist share a cache, and leave the user's alone."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="infersdk-tests-", ignore_cleanup_errors=True)
        os.environ["INFERSDK_CACHE"] = folder.name
        config.add_cleanup(folder.cleanup)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that run for long run when they are asked for: -m slow, -m soak, -m fuzz.

    A GPU test that hangs ends soon. A call of CUDA that never returns lets no signal handler run: a worker of xdist
    shows the stacks of its threads and ends, which fails that test alone.
    """
    if sys.platform == "win32":
        for item in items:
            if item.get_closest_marker("posix"):
                item.add_marker(pytest.mark.skip(reason="needs POSIX"))
    method = "signal" if _workers() == 1 and hasattr(signal, "SIGALRM") else "thread"
    has_gpu = device_count() > 0
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
        elif item.get_closest_marker("gpu") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(GPU_TIMEOUT, method=method))
    for marker in ("slow", "soak", "fuzz"):
        if marker in config.getoption("-m", ""):
            continue
        left_out = [item for item in items if item.get_closest_marker(marker)]
        items[:] = [item for item in items if item not in left_out]
        if left_out:
            config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leaves thousands of collected tests and all modules out of collections of garbage, now and later.

    They would take a seventh of the time, and the tests that ask for a collection would go through them each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
