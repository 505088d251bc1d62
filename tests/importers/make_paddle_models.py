"""Makes the PaddlePaddle models of the tests: `python make_paddle_models.py FOLDER [NAME ...]`.

Needs PaddlePaddle 3. `small` is made in both formats, and is in the repository; the others are made by the tests that
use them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import paddle
from paddle import nn
from paddle.nn import functional

IMAGE = paddle.static.InputSpec([None, 3, 8, 8], "float32", "x")
WORDS = paddle.static.InputSpec([None, 7], "int64", "words")
ANY_SIZE = paddle.static.InputSpec([None, 3, None, None], "float32", "x")
STEPS = paddle.static.InputSpec([None, 7, 8], "float32", "x")


class Small(nn.Layer):
    """Kinds of layers that read numbers: a slope, an epsilon, a value of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2D(3, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2D(4)
        self.linear = nn.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        y = functional.leaky_relu(self.norm(self.convolution(x)), 0.3)
        y = functional.pad(y, [1, 1, 1, 1], value=0.5)
        return functional.softmax(self.linear(functional.adaptive_avg_pool2d(y, 1).flatten(1)))


class Recurrent(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.recurrent = nn.LSTM(8, 6, direction="bidirect")

    def forward(self, words: Any) -> Any:
        return self.recurrent(self.embedding(words))[0]


class States(nn.Layer):
    """The last states of two layers, which paddle2onnx 2.1 joins wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(8, 6, num_layers=2)

    def forward(self, x: Any) -> Any:
        return self.recurrent(x)[1]


class Enlarged(nn.Layer):
    """Any size of image."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2D(3, 4, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return functional.interpolate(self.convolution(x), scale_factor=2, mode="bilinear")


class Missing(nn.Layer):
    """Operators that paddle2onnx has not."""

    def forward(self, x: Any) -> Any:
        return paddle.lgamma(x) + paddle.digamma(x) + paddle.lgamma(x + 1)


MODELS: dict[str, tuple[type[nn.Layer], Any]] = {
    "small": (Small, IMAGE),
    "recurrent": (Recurrent, WORDS),
    "enlarged": (Enlarged, ANY_SIZE),
    "missing": (Missing, IMAGE),
    "states": (States, STEPS),
}


def save(folder: Path, name: str) -> None:
    """NAME.json and, for `small`, NAME.pdmodel, with NAME.pdiparams."""
    paddle.seed(0)
    kind, spec = MODELS[name]
    layer = kind()
    layer.eval()
    if name == "small":
        with paddle.pir_utils.DygraphOldIrGuard():
            paddle.jit.save(layer, str(folder / name), input_spec=[spec])
        strip(folder / f"{name}.pdmodel")
    paddle.jit.save(layer, str(folder / name), input_spec=[spec])
    (folder / f"{name}.pdiparams.info").unlink(missing_ok=True)


def save_reaching(folder: Path) -> None:
    """A program that would write a file: `reaching.pdmodel`."""
    paddle.enable_static()
    with paddle.pir_utils.OldIrGuard():
        program = paddle.static.Program()
        with paddle.static.program_guard(program, paddle.static.Program()):
            x = paddle.static.data("x", [2, 3], "float32")
            y = paddle.scale(x, 2.0)
            program = paddle.static.normalize_program(program, [x], [y])
        program.global_block().append_op(
            type="save", inputs={"X": [y.name]}, outputs={}, attrs={"file_path": str(folder / "written")}
        )
        (folder / "reaching.pdmodel").write_bytes(program.desc.serialize_to_string())
    paddle.disable_static()


def strip(path: Path) -> None:
    """Takes the stacks of calls out, which name folders of the machine."""
    with paddle.pir_utils.OldIrGuard():
        program = paddle.static.Program.parse_from_string(path.read_bytes())
        for operator in program.global_block().ops:
            for attribute in ("op_callstack", "op_namescope", "op_role_var"):
                if operator.has_attr(attribute):
                    operator.desc.remove_attr(attribute)
        path.write_bytes(program.desc.serialize_to_string())


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for wanted in sys.argv[2:] or [*MODELS, "reaching"]:
        save_reaching(target) if wanted == "reaching" else save(target, wanted)
