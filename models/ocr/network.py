"""A network of PaddleOCR: one input of images, and one output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import UnsupportedModelError
from ..preprocessor import image_axes

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self

    from ...infer import Infer

__all__ = ["Network", "characters_of"]


class Network:
    """A network with one input of images and one output.

    Args:
        infer: the network.
        task: the task of the network, for messages.
        dimensions: of its output.

    Raises:
        UnsupportedModelError: it has other inputs or outputs.
    """

    def __init__(self, infer: Infer, task: str, dimensions: int) -> None:
        self.infer, self._task, self._dimensions = infer, task, dimensions
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
        self._input, self._output = inputs[0].name, outputs[0].name

    def input(self, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The input at this size, as an array to write before `run()`."""
        return self.infer.inputs[self._input].resize(shape).numpy(writable=True)

    def run(self) -> npt.NDArray[Any]:
        """Runs on the input; the output is valid until the next run."""
        self.infer.forward()
        return self.infer.outputs[self._output].numpy()

    def clone(self) -> Self:
        """A second one for another thread, over the same weights."""
        infer = self.infer.clone()
        try:
            return type(self)(infer, self._task, self._dimensions)
        except BaseException:
            infer.close()
            raise


def characters_of(infer: Infer) -> list[str]:
    """What each class stands for: a blank, the characters of the metadata, a space.

    Raises:
        UnsupportedModelError: the metadata has no characters, or another number of them than the output has classes.
    """
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
