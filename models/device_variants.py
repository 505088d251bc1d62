"""Postprocessing on a CUDA device, with an own decoder for each variant of the settings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from ..core.stream import Stream
    from ..image import Geometry
    from ..infer import Infer
    from .execution import Parameters
    from .vision import VisionModel

__all__ = ["DeviceDecoder", "DeviceVariants"]

Model = TypeVar("Model", bound="VisionModel[Any]")

#: Decoders that a batch on a device keeps: as many as canvases, for two variants of the settings.
MOST_DECODERS = 16


class DeviceDecoder(Generic[Model]):
    """The decoder of one variant of the settings, for outputs of one shape.

    Args:
        model: the wrapper with these settings.
        infer: the network, whose outputs are decoded on its stream.
        capacity: maximum number of images in a batch.
    """

    def __init__(self, model: Model, infer: Infer, capacity: int) -> None:
        self._model, self._infer, self._capacity = model, infer, capacity

    @property
    def _stream(self) -> Stream:
        stream = self._infer.stream
        assert stream is not None
        return stream

    @abstractmethod
    def queue(self, geometries: Sequence[Geometry]) -> None:
        """Queues the decoding of the batch that is on the stream, and the copy of its results to the host."""

    @abstractmethod
    def results(self, rows: Sequence[int], geometries: Sequence[Geometry]) -> Iterable[Any]:
        """Waits for that copy, and returns the results of these images of the batch.

        Args:
            geometries: of all images of the batch.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees its memory."""


class DeviceVariants(Generic[Model]):
    """See `DevicePostprocess`.

    Args:
        kind: the decoder of each variant of the settings.
        output: the output whose shape a decoder is for.
    """

    def __init__(
        self, kind: type[DeviceDecoder[Model]], model: Model, infer: Infer, capacity: int, output: str
    ) -> None:
        self._kind, self._model, self._infer, self._capacity, self._output = kind, model, infer, capacity, output
        #: By the id of the wrapper, which the decoder keeps, and the shape of the output.
        self._decoders: dict[tuple[int, tuple[int, ...]], DeviceDecoder[Model]] = {}
        #: Of the batch on the stream: each decoder, and the images that have its results.
        self._queued: list[tuple[DeviceDecoder[Model], Sequence[int]]] = []

    def queue(self, geometries: Sequence[Geometry], parameters: Sequence[Parameters]) -> None:
        if len(self._decoders) > MOST_DECODERS:  # those of earlier requests; none of them is in a batch on the stream
            self.close()
        self._queued = []
        for model, rows in self._model._by_settings(parameters):
            key = id(model), self._infer.outputs[self._output].shape[1:]
            decoder = self._decoders.get(key)
            if decoder is None:
                decoder = self._decoders[key] = self._kind(model, self._infer, self._capacity)
            decoder.queue(geometries)
            self._queued.append((decoder, rows))

    def collect(self, geometries: Sequence[Geometry], parameters: Sequence[Parameters]) -> list[Any]:
        results: list[Any] = [None] * len(geometries)
        for decoder, rows in self._queued:
            for row, result in zip(rows, decoder.results(rows, geometries), strict=True):
                results[row] = result
        return results

    def close(self) -> None:
        for decoder in self._decoders.values():
            decoder.close()
        self._decoders.clear()
