"""Reading text: a network that finds lines, one that turns them, and one that reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ...errors import ConfigError, UnsupportedModelError
from ...image import Geometry, HostImage, ImageSource, PixelTransform, image_view, read_image
from ...infer import Infer
from ...ops import preprocess, topk
from ...registry import load
from .lines import TextLine, TextLines
from .regions import import_cv2, reading_order, text_regions

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self

    from ...model_source import ModelLike

__all__ = ["OCR"]

#: What all three networks take: (x / 255 - 0.5) / 0.5 of BGR.
_PIXELS = PixelTransform("bgr", "chw", "float32", fill=0, scale=1 / 127.5, bias=-1.0)
#: The height of a line, and the width that the orientation is looked at with.
LINE_HEIGHT, ORIENTATION_WIDTH = 48, 192
#: Widths of lines are multiples of this one, so that the runtime sees few shapes.
BUCKET = 64
#: A line that is so many times as high as wide is written from top to bottom.
VERTICAL = 1.5
#: Images that are wider than high by more than this get a margin above and below, and those of fewer rows too.
WIDEST, FEWEST_ROWS = 8.0, 30
#: The score above which a line is read from its other end too.
TURNED = 0.9


class OCR:
    """The text in images, by the networks of PaddleOCR (PP-OCR).

    ::

        reader = OCR("det.onnx", "rec.onnx", "cls.onnx", backend="openvino")
        for line in reader("page.jpg"):
            print(line.text, line.score)

    Args:
        detection: finds lines: its input is [n, 3, height, width], its output a map of how sure it is of text.
        recognition: reads lines of 48 pixels: its output is [n, steps, classes] with the probabilities of the
            characters that its metadata lists under `character`, of a blank before them, and of a space behind them.
        orientation: says which lines may be upside down; these are read both ways, and the better reading counts. None
            reads all as they are.
        backend, device, precision, options: for each network, as `infersdk.load()` takes them. A path may also be an
            `Infer` that is loaded already.
        threshold: the probability above which a pixel is text.
        box_threshold: the mean probability that a line's rectangle has at least.
        unclip: how far rectangles grow beyond the text's core.
        text_score: lines whose score is lower are left out, and counted in `dropped`.
        side: the smaller side of the image that detection sees has at least so many pixels; smaller images are
            enlarged, until their larger side is twice `max_side`.
        max_side: images whose larger side is longer are made smaller.
        batch: lines that are read together.
        channel_order: of NumPy arrays that are given as images, `"bgr"` or `"rgb"`.

    Raises:
        ConfigError: a setting has a wrong value.
        UnsupportedModelError: a network is of another kind, or its characters do not match its classes.
        BackendUnavailableError: OpenCV or the backend is not installed.
        BackendError, ModelError: see `infersdk.load()`.
    """

    def __init__(
        self,
        detection: ModelLike | Infer,
        recognition: ModelLike | Infer,
        orientation: ModelLike | Infer | None = None,
        backend: str = "onnxruntime",
        *,
        device: str | None = None,
        precision: str | None = None,
        threshold: float = 0.3,
        box_threshold: float = 0.5,
        unclip: float = 1.6,
        text_score: float = 0.5,
        side: int = 736,
        max_side: int = 2000,
        batch: int = 8,
        channel_order: str = "bgr",
        **options: Any,
    ) -> None:
        import_cv2()
        for name, share in (("threshold", threshold), ("box_threshold", box_threshold), ("text_score", text_score)):
            if not 0 <= share <= 1:
                raise ConfigError(f"{name} is a number from 0 to 1, not {share}")
        if not (math.isfinite(unclip) and unclip >= 0):
            raise ConfigError(f"unclip is a number from 0, not {unclip}")
        if min(side, batch) < 1 or max_side < side:
            raise ConfigError(f"side={side}, max_side={max_side}, batch={batch}; all are at least 1, and max_side side")
        self.threshold, self.box_threshold, self.unclip = threshold, box_threshold, unclip
        self.text_score, self.side, self.max_side, self.batch = text_score, side, max_side, batch
        self.channel_order = channel_order
        with ExitStack() as opened:

            def network(source: ModelLike | Infer) -> Infer:
                if isinstance(source, Infer):
                    return source
                return opened.enter_context(load(source, backend, device=device, precision=precision, **options))

            self.detection = _Network(network(detection), "detection", 4)
            self.recognition = _Network(network(recognition), "recognition", 3)
            self.orientation = _Network(network(orientation), "orientation", 2) if orientation is not None else None
            self.characters = _characters(self.recognition.infer)
            opened.pop_all()

    # ---- calls ----

    @overload
    def __call__(self, images: ImageSource | HostImage) -> TextLines: ...
    @overload
    def __call__(self, images: list[Any]) -> list[TextLines]: ...
    def __call__(self, images: Any) -> Any:
        """The lines of an image, or of a list of them.

        Raises:
            ImageError: an image cannot be read.
            InferenceError: the runtime failed.
        """
        if isinstance(images, (list, tuple)) and not isinstance(images, HostImage):
            return list(self.stream(images))
        return self._read(images)

    def stream(self, images: Iterable[ImageSource | HostImage]) -> Iterator[TextLines]:
        """The lines of any number of images, in order."""
        return map(self._read, images)

    def _read(self, source: ImageSource | HostImage) -> TextLines:
        image = read_image(source, channel_order=self.channel_order)
        quads = self.regions(image)
        lines = self.read_lines(image, quads)
        doubtful = self._upside_down(image, quads)
        # The network that judges this knows lines of 192 pixels alone, and errs; what a line says decides.
        for index, turned in zip(doubtful, self.read_lines(image, quads[doubtful][:, [2, 3, 0, 1]]), strict=True):
            if turned.score > lines[index].score:
                lines[index] = turned
        kept = [line for line in lines if line.score >= self.text_score]
        return TextLines(kept, image.size, len(lines) - len(kept))

    # ---- where text is ----

    def regions(self, image: HostImage) -> npt.NDArray[np.float32]:
        """The rectangles around the lines, in the order of reading: (N, 4, 2) in pixels of the image, each from where
        its line begins above, clockwise.
        """
        padded, above = _with_margin(image)
        geometry = Geometry.stretch(padded.size, self._canvas(padded.size))
        shape = (1, 3, *reversed(geometry.canvas))
        view = image_view(padded.pixels, padded.format)  # type: ignore[arg-type]
        preprocess(view, geometry, _PIXELS, out=self.detection.input(shape)[0])
        probability = self.detection.run()[0, 0]
        regions = text_regions(
            probability, threshold=self.threshold, box_threshold=self.box_threshold, unclip=self.unclip
        )
        # On whole pixels, so that a line that lies along the rows is not blurred where it is cut out.
        corners = np.round(geometry.to_source(regions.reshape(-1, 2))).reshape(-1, 4, 2).astype(np.float32)
        corners = np.clip(corners, 0, padded.size)
        corners = corners[[min(_sides(quad)) > 3 for quad in corners]]
        corners = corners[reading_order(corners)]
        corners[:, :, 1] -= above
        return np.array([_along_the_text(quad) for quad in np.clip(corners, 0, image.size)], np.float32).reshape(
            -1, 4, 2
        )

    def _canvas(self, size: tuple[int, int]) -> tuple[int, int]:
        """The size at which an image is searched, in multiples of 32."""
        scale = min(self.max_side / max(size), 1.0)
        scale = min(max(self.side / min(size), scale), 2 * self.max_side / max(size))
        width, height = (max(round(int(side * scale) / 32) * 32, 32) for side in size)
        return width, height

    # ---- which way up, and what it says ----

    def _upside_down(self, image: HostImage, quads: npt.NDArray[np.float32]) -> list[int]:
        """The lines that the orientation network takes for upside down."""
        turned: list[int] = []
        for start in range(0, len(quads) if self.orientation is not None else 0, self.batch):
            assert self.orientation is not None
            group = range(start, min(start + self.batch, len(quads)))
            self._fill(self.orientation, image, quads, group, ORIENTATION_WIDTH)
            scores = self.orientation.run()
            turned += [index for row, index in enumerate(group) if scores[row, 1] > TURNED]
        return turned

    def read_lines(self, image: HostImage, quads: npt.NDArray[np.float32]) -> list[TextLine]:
        """What lines say.

        Args:
            quads: (N, 4, 2): the corners of each line, from where it begins above, clockwise.
        """
        lines: list[Any] = [None] * len(quads)
        widths = [_width(quad) for quad in quads]
        order = sorted(range(len(quads)), key=widths.__getitem__)  # lines of one batch are about as long
        for start in range(0, len(order), self.batch):
            group = order[start : start + self.batch]
            width = -(-widths[group[-1]] // BUCKET) * BUCKET
            self._fill(self.recognition, image, quads, group, width)
            for index, steps in zip(group, self.recognition.run(), strict=True):
                lines[index] = self._decoded(steps, quads[index])
        return lines

    def _fill(
        self, network: _Network, image: HostImage, quads: npt.NDArray[np.float32], group: Sequence[int], width: int
    ) -> None:
        """Brings lines into a network's input, upright and 48 pixels high; what is right of them is 0."""
        view = image_view(image.pixels, image.format)  # type: ignore[arg-type]
        array = network.input((len(group), 3, LINE_HEIGHT, width))
        for row, index in enumerate(group):
            own = min(_width(quads[index]), width)
            array[row, :, :, own:] = 0
            array[row, :, :, :own] = preprocess(view, _upright_geometry(image.size, quads[index], own), _PIXELS)

    def _decoded(self, steps: npt.NDArray[Any], quad: npt.NDArray[np.float32]) -> TextLine:
        """Connectionist temporal classification, the best path: the best class of each step, of equal neighbours one,
        without blanks (A. Graves et al., 2006).
        """
        best, scores = (column[:, 0] for column in topk(np.ascontiguousarray(steps, np.float32), 1, softmax=False))
        chosen = best != 0
        chosen[1:] &= best[1:] != best[:-1]
        own = scores[chosen]
        text = "".join(self.characters[i] for i in best[chosen])
        return TextLine(text, float(own.mean()) if len(own) else 0.0, quad, tuple(own.tolist()))

    # ---- one reader, several of them ----

    def clone(self) -> Self:
        """A second reader for another thread, over the same weights."""
        import copy

        twin = copy.copy(self)
        with ExitStack() as opened:
            for name in ("detection", "recognition", "orientation"):
                network = getattr(self, name)
                if network is not None:
                    setattr(twin, name, _Network(opened.enter_context(network.infer.clone()), name, network.dimensions))
            opened.pop_all()
        return twin

    def close(self) -> None:
        """Closes the networks."""
        for network in (self.detection, self.recognition, self.orientation):
            if network is not None:
                network.infer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        infer = self.recognition.infer
        return f"<OCR {infer.model.name}, {len(self.characters)} characters, {infer.active_backend} on {infer.device}>"


class _Network:
    """A network with one input of images and one output.

    Raises:
        UnsupportedModelError: it has other inputs or outputs.
    """

    def __init__(self, infer: Infer, what: str, dimensions: int) -> None:
        self.infer, self.dimensions = infer, dimensions
        inputs, outputs = infer.input_specs, infer.output_specs
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or len(outputs) != 1:
            raise UnsupportedModelError(
                f"{infer.model.name} is no network for {what}: it has the inputs {[str(spec) for spec in inputs]} and "
                f"the outputs {[str(spec) for spec in outputs]}; use one input of images and one output"
            )
        if len(outputs[0].shape) not in (0, dimensions):
            raise UnsupportedModelError(
                f"{infer.model.name} is no network for {what}: its output {outputs[0]} has {len(outputs[0].shape)} "
                f"dimensions, not {dimensions}; were detection, recognition and orientation exchanged?"
            )
        self._input, self._output = inputs[0].name, outputs[0].name

    def input(self, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The input at this size, as an array to write before `run()`."""
        return self.infer.inputs[self._input].resize(shape).numpy(writable=True)

    def run(self) -> npt.NDArray[Any]:
        """Runs on what was written; the output stays valid until the next run."""
        self.infer.forward()
        return self.infer.outputs[self._output].numpy()


def _characters(infer: Infer) -> list[str]:
    """What each class stands for: a blank, the characters of the metadata, a space."""
    if "character" not in infer.metadata:
        raise UnsupportedModelError(
            f"{infer.model.name} does not say which characters it reads: its metadata has no 'character'"
        )
    characters = ["", *infer.metadata["character"].split("\n"), " "]
    classes = infer.output_specs[0].shape[-1] if infer.output_specs[0].shape else None
    if isinstance(classes, int) and classes != len(characters):
        raise UnsupportedModelError(
            f"{infer.model.name} tells {classes} classes apart, but its metadata lists {len(characters) - 2} "
            "characters; with a blank and a space there should be two classes more"
        )
    return characters


def _with_margin(image: HostImage) -> tuple[HostImage, int]:
    """An image that is very wide, or has few rows, with black above and below; and how many rows above."""
    width, height = image.size
    if height > FEWEST_ROWS and width / height <= WIDEST:
        return image, 0
    above = abs(max(int(width / WIDEST), FEWEST_ROWS) * 2 - height) // 2
    margins = [(above, above), (0, 0), (0, 0)][: image.pixels.ndim]
    return HostImage(np.pad(image.pixels, margins), image.format, image.decoder), above


def _sides(quad: npt.NDArray[np.float32]) -> tuple[int, int]:
    """The width and height of a rectangle, in whole pixels: the longer ones of opposite sides."""
    lengths = np.linalg.norm(quad - np.roll(quad, -1, axis=0), axis=1)
    return int(max(lengths[0], lengths[2])), int(max(lengths[1], lengths[3]))


def _along_the_text(quad: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The corners from where the line begins: text from top to bottom begins at the upper right corner."""
    width, height = _sides(quad)
    return quad[[1, 2, 3, 0]] if height >= VERTICAL * width else quad


def _width(quad: npt.NDArray[np.float32]) -> int:
    """The width of a line that is 48 pixels high."""
    width, height = _sides(quad)
    return max(math.ceil(LINE_HEIGHT * width / max(height, 1)), 1)


def _upright_geometry(size: tuple[int, int], quad: npt.NDArray[np.float32], width: int) -> Geometry:
    """The map from a canvas of `width` x 48 to the image, along the sides of the line."""
    begin, end, below = quad[0], quad[1], quad[3]
    matrix = np.column_stack([(end - begin) / width, (below - begin) / LINE_HEIGHT, begin])
    return Geometry.affine(size, (width, LINE_HEIGHT), matrix.astype(np.float64))
