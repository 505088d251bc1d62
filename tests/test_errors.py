"""The tree of errors: what its docstring draws is what the classes are."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from infersdk import errors
from infersdk.core._lib import check, lib

CLASSES = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}


def drawn() -> dict[str, list[str]]:
    """Each class in the docstring's tree with its bases, in the order drawn: its parent, then those in brackets."""
    tree: dict[str, list[str]] = {}
    path: list[str] = []
    for line in errors.__doc__.partition("::\n\n")[2].splitlines():  # type: ignore[union-attr]
        match = re.fullmatch(r"    ((?:[│ ]   )*)((?:├── |└── )?)(\w+)(?: \((\w+)\))?(?:  .*)?", line)
        if match is None:
            break
        depth = len(match[1]) // 4 + bool(match[2])
        path[depth:] = [match[3]]
        tree[match[3]] = ([path[depth - 1]] if depth else ["Exception"]) + ([match[4]] if match[4] else [])
    return tree


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    assert drawn() == {name: [base.__name__ for base in kind.__bases__] for name, kind in CLASSES.items()}


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
