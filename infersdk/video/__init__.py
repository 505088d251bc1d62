"""Videos and cameras in, videos out, with PyAV (`pip install "infersdk[video]"`).

::

    with VideoReader("in.mp4") as reader, VideoWriter("out.mp4", reader.size, reader.fps) as writer:
        for frame, detections in paired(detector.map, reader):
            writer.write(detections.draw(frame), frame.time)

`Streams` runs many of them through one model.

Decoding and encoding run on threads of their own, and overlap with the model and the drawing. Frames stay in order, and
only a few of them wait at any place, so the memory is bounded.
"""

from ..core.prefetch import Prefetch, paired
from .frames import AnyFrame, DeviceFrame, Frame
from .nvdec import DeviceVideoReader
from .reader import VideoReader
from .streams import StreamHealth, StreamInfo, StreamResult, Streams, Submits
from .writer import VideoWriter

__all__ = [
    "AnyFrame", "DeviceFrame", "DeviceVideoReader", "Frame", "Prefetch", "StreamHealth", "StreamInfo", "StreamResult",
    "Streams", "Submits", "VideoReader", "VideoWriter", "paired",
]  # fmt: skip
