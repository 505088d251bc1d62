"""TensorSpec: what a model declares about its inputs and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import infersdk
from infersdk import Tensor, TensorSpec
from infersdk.core.tensor_spec import as_array, as_numbers
from infersdk.data import DETECTOR
from infersdk.errors import DTypeError, InputError, ShapeError


def test_a_spec_reads_as_a_person_would_write_it() -> None:
    spec = TensorSpec("images", np.dtype("float32"), ("batch", 3, None, 640))
    assert spec.is_dynamic
    assert str(spec) == "images: float32 (batch, 3, ?, 640)"
    assert TensorSpec("n", np.dtype("int64"), (5,)).text == "(5,)"
    scalar = TensorSpec("s", np.dtype("bool"), ())
    assert scalar.text == "()"
    assert not scalar.is_dynamic


def test_a_spec_checks_shape_and_type() -> None:
    spec = TensorSpec("images", np.dtype("float32"), ("batch", 3, None))
    spec.check((7, 3, 0), np.dtype("float32"))
    spec.check((0, 3, 1))
    for shape in ((7, 4, 1), (7, 3), (7, 3, 1, 1), ()):
        with pytest.raises(ShapeError) as caught:
            spec.check(shape)
        assert str(caught.value) == f"input 'images' takes shape (batch, 3, ?), not {shape}"
    with pytest.raises(DTypeError) as typed:
        spec.check((1, 3, 1), np.dtype("uint8"))
    assert str(typed.value) == "input 'images' takes float32, not uint8; convert it with .astype('float32')"


@pytest.mark.parametrize(
    ("shape", "free", "fixed"),
    [(("n", 3), True, None), ((None, 3), True, None), ((4, 3), False, 4), ((1, "h"), False, 1), ((), False, None)],
)
def test_whether_the_batch_is_free(shape: tuple[int | str | None, ...], free: bool, fixed: int | None) -> None:
    spec = TensorSpec("x", np.dtype("float32"), shape)
    assert spec.has_free_batch is free
    assert spec.fixed_batch == fixed


@pytest.mark.parametrize(
    "image",
    ["bus.jpg", Path("bus.jpg"), b"\xff\xd8", Image.new("RGB", (8, 8)), ["bus.jpg"]],
    ids=["text", "path", "bytes", "Pillow", "list"],
)
def test_an_infer_is_not_given_images(image: Any) -> None:
    pytest.importorskip("onnxruntime")
    with (
        infersdk.load(DETECTOR) as infer,
        pytest.raises(InputError, match=r"an Infer takes arrays, not .*infersdk\.models\.load\(\)"),
    ):
        infer(image)


def test_rows_of_different_lengths_are_no_array() -> None:
    with pytest.raises(InputError, match="input 'x' is not an array: .*; give rows of equal length"):
        as_array([[1.0, 2.0], [3.0]], "x")
    np.testing.assert_array_equal(as_array([[1, 2]], "x"), [[1, 2]])
    with pytest.raises(InputError, match="a list is not an array: .*; give rows of equal length"):
        Tensor.wrap([[1.0, 2.0], [3.0]])


@pytest.mark.parametrize("kind", [RuntimeError, TypeError])
def test_a_value_that_refuses_to_be_an_array(kind: type[Exception]) -> None:
    class Refusing:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise kind("call detach() first")

    with pytest.raises(InputError, match=r"input 'x' is not an array: call detach\(\) first; give a value that numpy"):
        as_array(Refusing(), "x")
    with pytest.raises(InputError, match="a Refusing is not an array: call detach"):
        Tensor.wrap(Refusing())
    with pytest.raises(InputError, match="the source cannot be an array: call detach"):
        Tensor((2,)).copy_from(Refusing())
    with pytest.raises(InputError, match="scores cannot be read as an array of numbers: call detach"):
        as_numbers("scores", Refusing())


def test_numbers_that_are_not_aligned_are_copied() -> None:
    raw = np.arange(9, dtype=np.uint8)
    assert as_numbers("scores", raw[1:].view(np.float32), np.float32).flags.aligned
