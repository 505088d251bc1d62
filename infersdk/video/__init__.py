"""Videos and cameras in, videos out, with PyAV (`pip install "infersdk[video]"`).

::

    with VideoReader("in.mp4") as reader, VideoWriter("out.mp4", reader.size, reader.fps) as writer:
        for frame, found in paired(detector.map, reader):
            writer.write(found.draw(frame), frame.time)

Decoding and encoding run on threads of their own, so that they overlap with the model and the drawing. Frames stay in
order, and no more than a few wait anywhere.
"""

from ._prefetch import Ahead, paired
from .reader import Frame, VideoReader
from .writer import VideoWriter

__all__ = ["Ahead", "Frame", "VideoReader", "VideoWriter", "paired"]
