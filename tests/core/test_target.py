"""Target: backend, device and precision in one, and as text."""

from __future__ import annotations

import pytest

from infersdk import Target
from infersdk.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("openvino", Target("openvino")),
        ("onnxruntime@cuda:0", Target("onnxruntime", "cuda:0")),
        ("tensorrt-rtx/fp16", Target("tensorrt-rtx", None, "fp16")),
        ("openvino@cpu/bf16", Target("openvino", "cpu", "bf16")),
    ],
)
def test_a_target_is_written_as_it_is_read(text: str, target: Target) -> None:
    assert Target.parse(text) == target
    assert str(target) == text
    assert Target.parse(target) is target


def test_the_arguments_of_load() -> None:
    assert Target.parse("openvino@cpu/fp32").arguments == {"backend": "openvino", "device": "cpu", "precision": "fp32"}
    assert Target("mine").arguments == {"backend": "mine", "device": None, "precision": None}


@pytest.mark.parametrize("text", ["", "@cpu", "/fp16", "a@", "a/", "a@b@c", "a/fp16@cpu", "a b", True, None, 3])
def test_what_names_no_target_is_refused(text: object) -> None:
    with pytest.raises(ConfigError, match=r"does not name a backend; write backend, backend@device"):
        Target.parse(text)  # type: ignore[arg-type]


def test_an_unknown_precision_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"fp61.*fp32, bf16, fp16, int8"):
        Target.parse("openvino/fp61")


def test_targets_can_be_keys() -> None:
    assert len({Target("a", "cpu"), Target("a", "cpu"), Target("a")}) == 2
