"""Decoding the image files of batches on the device that runs the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ...image.nvimgcodec import DecodedBatch, EncodedImage, JpegDecoder, encoded_image, is_installed, shared_decoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...image import DeviceImage, HostImage
    from ...infer import Infer

__all__ = ["DeviceDecoding"]


class DeviceDecoding:
    """The JPEG files of batches become images on the device, a batch at a time.

    One thread decodes at a time, on a stream of its own, while models run. Decoding on several threads, or on the
    stream of the model, takes longer.
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
        """The file to decode on the device; None for sources that are read on the processor."""
        return encoded_image(source)

    def decode(
        self, images: Sequence[HostImage | DeviceImage | EncodedImage]
    ) -> tuple[list[HostImage | DeviceImage], DecodedBatch | None]:
        """The images with the files among them decoded, and the memory of these; see `recycle()`."""
        files = [image for image in images if isinstance(image, EncodedImage)]
        decoded = self._decoder.decode(files) if files else None
        on_device = iter(decoded.images if decoded is not None else ())
        return [next(on_device) if isinstance(image, EncodedImage) else image for image in images], decoded

    def recycle(self, decoded: DecodedBatch | None) -> None:
        """Takes the memory of this batch back; its images are not read any more."""
        if decoded is not None:
            self._decoder.recycle(decoded)
