"""Decoding the image files of batches on the device that runs the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._prefetch import Prefetch
from ...errors import ConfigError
from ...image.nvimgcodec import DecodedBatch, EncodedImage, JpegDecoder, encoded_image, is_installed, shared_decoder
from .executor import BatchItem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...infer import Infer

__all__ = ["DeviceDecoding"]

#: Batches that are decoded ahead of the one that begins to run: one waits while the next one is decoded.
AHEAD = 1


class DeviceDecoding:
    """The JPEG files of batches become images on the device, a batch at a time.

    One thread decodes at a time, on a stream of its own, while models run: decoding on several threads at once, or by
    turns with the model, takes longer.
    """

    def __init__(self, decoder: JpegDecoder) -> None:
        self._decoder = decoder

    @classmethod
    def of(cls, setting: str, infer: Infer) -> DeviceDecoding | None:
        """For a network and the setting `decode`; None where the processor decodes.

        Raises:
            ConfigError: `"gpu"`, and the network is not on a CUDA device.
            BackendUnavailableError: `"gpu"`, and nvImageCodec is not installed or finds no decoder.
        """
        if setting == "cpu" or (setting == "auto" and (infer.stream is None or not is_installed())):
            return None
        if infer.stream is None:
            raise ConfigError(
                f"decode='gpu' needs a model on a CUDA device, and {infer.model.name} is on {infer.device}; "
                "use decode='cpu' or decode='auto'"
            )
        return cls(shared_decoder(infer.stream.device))

    def read(self, source: Any) -> EncodedImage | None:
        """The file to decode on the device; None for what is read on the processor."""
        return encoded_image(source)

    def decode(self, batch: Sequence[BatchItem]) -> tuple[list[BatchItem], DecodedBatch | None]:
        """The batch with its files decoded, and their memory; see `recycle()`."""
        files = [item.image for item in batch if isinstance(item.image, EncodedImage)]
        if not files:
            return list(batch), None
        decoded = self._decoder.decode(files)
        images = iter(decoded.images)
        items = [
            BatchItem(next(images), item.parameters) if isinstance(item.image, EncodedImage) else item for item in batch
        ]
        return items, decoded

    def ahead(self, batches: Iterator[Sequence[BatchItem]]) -> Prefetch[tuple[list[BatchItem], DecodedBatch | None]]:
        """The batches, decoded on a thread of its own while the caller works on earlier ones."""
        return Prefetch(map(self.decode, batches), AHEAD)

    def recycle(self, decoded: DecodedBatch | None) -> None:
        """The images of this batch are not read any more."""
        if decoded is not None:
            self._decoder.recycle(decoded)
