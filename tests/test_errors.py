"""The errors: their messages, and how they travel between processes."""

from __future__ import annotations

import inspect
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
