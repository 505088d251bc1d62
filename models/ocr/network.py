"""The networks of PaddleOCR: one input of images, and one output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import UnsupportedModelError
from ..preprocessor import image_axes

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...infer import Infer

__all__ = ["characters_of", "check_network", "input_array", "run"]


def check_network(infer: Infer, task: str, dimensions: int) -> None:
    """Checks that a network has one input of images, and one output with this number of dimensions."""
    inputs, outputs = infer.input_specs, infer.output_specs
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or len(outputs) != 1:
        raise UnsupportedModelError(
            f"{infer.model.name} is no network for {task}: it has the inputs {[str(spec) for spec in inputs]} and "
            f"the outputs {[str(spec) for spec in outputs]}; use one input of images and one output"
        )
    if image_axes(inputs[0].shape) != ("chw", 3):
        raise UnsupportedModelError(
            f"{infer.model.name} is no network for {task}: its input {inputs[0]} is not (batch, 3, height, width)"
        )
    if len(outputs[0].shape) not in (0, dimensions):
        raise UnsupportedModelError(
            f"{infer.model.name} is no network for {task}: its output {outputs[0]} has {len(outputs[0].shape)} "
            f"dimensions, not {dimensions}; were detection, recognition and orientation exchanged?"
        )


def input_array(infer: Infer, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The input of a network at this size, to be written before `run()`. Raises ClosedError for a closed one."""
    infer.current()  # its error names the model, unlike that of a closed tensor
    return infer.inputs[infer.input_specs[0].name].resize(shape).numpy(writable=True)


def run(infer: Infer) -> npt.NDArray[Any]:
    """Runs a network on its input. The output is valid until the next run."""
    infer.forward()
    return infer.outputs[infer.output_specs[0].name].numpy()


def characters_of(infer: Infer) -> list[str]:
    """What each class stands for: a blank, the characters of the metadata, a space."""
    if "character" not in infer.metadata:
        raise UnsupportedModelError(
            f"{infer.model.name} does not say which characters it reads: its metadata has no 'character'"
        )
    characters = ["", *infer.metadata["character"].split("\n"), " "]
    classes = infer.output_specs[0].shape[-1] if infer.output_specs[0].shape else None
    if isinstance(classes, int) and classes != len(characters):
        raise UnsupportedModelError(
            f"{infer.model.name} has {classes} classes, but its metadata lists {len(characters) - 2} "
            "characters; with a blank and a space there should be two classes more"
        )
    return characters
