"""The errors: their messages, and how they travel between processes."""

from __future__ import annotations

import errno
import inspect
import os
import pickle

import pytest

from infersdk import errors
from infersdk.core._lib import check, lib

CLASSES = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_each_is_caught_by_the_root_says_its_message_and_travels(name: str) -> None:
    error = CLASSES[name]("what was wrong, with the values, and what to do")
    assert isinstance(error, errors.InferSDKError)
    assert (
        str(error) == "what was wrong, with the values, and what to do"
    )  # KeyError and OSError have ways of their own
    assert CLASSES[name].__doc__
    again = pickle.loads(pickle.dumps(error))  # as from a worker process
    assert type(again) is type(error)
    assert str(again) == str(error)


def test_every_status_of_the_core_has_its_error() -> None:
    codes = {name: getattr(lib, name) for name in dir(lib) if name.startswith("IFS_ERR_")}
    assert len(codes) >= 12
    for name, code in codes.items():
        with pytest.raises(errors.InferSDKError) as caught:
            check(code)
        if name != "IFS_ERR_UNSUPPORTED":
            assert type(caught.value) is not errors.NativeError, name
    with pytest.raises(errors.NativeError):
        check(-9999)
    check(lib.IFS_OK)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "MemoryError"),
        (OSError(errno.EMFILE, "full", "bad_alloc.onnx"), "full"),
        (RuntimeError("Exception from a.cpp:1:\nstd::bad_alloc"), "Exception from a.cpp:1: std::bad_alloc"),
        (RuntimeError(f"thread: {os.strerror(errno.EAGAIN)}"), f"thread: {os.strerror(errno.EAGAIN)}"),
        ("[CPU] Convolution node with name 'a' can't alloc", "[CPU] Convolution node with name 'a' can't alloc"),
        ("Error Code 2: OutOfMemory (Requested size was 9 bytes.)", "Error Code 2: OutOfMemory"),
    ],
)
def test_exhausted_resources(error: BaseException | str, reason: str) -> None:
    found = errors.exhausted(error, "m.onnx")
    assert isinstance(found, errors.OutOfMemoryError)
    assert str(found).startswith(f"m.onnx: the process lacks memory, threads or file descriptors: {reason}")


@pytest.mark.parametrize("error", [RuntimeError("no kernel"), OSError(errno.EACCES, "denied", "bad_alloc.onnx"), ""])
def test_other_failures_exhaust_nothing(error: BaseException | str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert errors.exhausted(error, "m.onnx") is None

    def full(*given: object) -> int:
        raise OSError(errno.EMFILE, "no descriptor is free")

    monkeypatch.setattr(os, "open", full)
    assert "no descriptor is free" in str(errors.exhausted(error, "m.onnx"))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("confidence", "conf"), ("conf_thres", "conf"), ("Conf", "conf"), ("class", "classes"),
        ("max_detections", "max_det"), ("treads", "threads"), ("frobnicate", None), ("", None),
    ],
)  # fmt: skip
def test_the_nearest_name(name: str, near: str | None) -> None:
    known = ["device", "conf", "classes", "max_det", "threads", "canvas_border"]
    assert errors.nearest_name(name, known) == near
    assert errors.nearest(name, known) == (f"; did you mean {near!r}?" if near else "")
    assert errors.nearest(name, []) == ""
