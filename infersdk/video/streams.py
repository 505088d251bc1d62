"""Many videos and cameras at once, through one model."""

from __future__ import annotations

import math
import os
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from ..core.prefetch import check_count
from ..core.text import without_password
from ..errors import ClosedError, ConfigError
from .reader import check_format
from .source_reader import check_seconds, source_text
from .stream import Source, Stream, StreamHealth, StreamInfo, StreamResult, StreamSettings, looks_live

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..core.device import Device
    from .frames import AnyFrame

__all__ = ["StreamHealth", "StreamInfo", "StreamResult", "Streams", "Submits"]

Result = TypeVar("Result")

#: Frames under way: of one live source, where each adds to the delay; of all files together, and of one at least and
#: at most.
LIVE_IN_FLIGHT, FILES_IN_FLIGHT, LEAST, MOST = 2, 64, 4, 32
#: Seconds that `close()` waits for threads that read, in case a source hangs.
CLOSING = 2.0


class Submits(Protocol[Result]):
    """A model for frames: every wrapper and composition."""

    def submit(self, image: Any, **parameters: Any) -> Future[Result]: ...


class Streams:
    """Videos and cameras that share one model: their frames fill its batches together.

    ::

        with Streams({"door": "rtsp://camera/door", "hall": "hall.mp4"}) as streams:
            for item in streams.run(detector):
                print(item.stream, item.frame.time, item.result)

    Each stream keeps its own order. A file gives all of its frames, and waits for the model. A live source gives its
    newest frame when the model is ready for one; the frames that it replaced are counted. A live source that breaks
    off, or sends nothing for `timeout` seconds, is opened again after a pause that doubles, up to 30 s; its times and
    numbers go on. What happens to one stream disturbs no other.

    Args:
        sources: what `VideoReader` takes, by name; or a list, whose items are named as they are written, without
            passwords.
        in_flight: frames of one stream that the model has, or whose results wait to be taken. None is 2 for live
            sources, and for files 64 divided by their number, at least 4 and at most 32.
        files_at_once: files that are read at the same time; the others wait for the end of one of them.
        give_up_after: seconds without a frame after which a live source is not opened again, and ends with an error.
            0 never opens it again.
        retry_first: whether a live source that cannot be opened at the start is tried again, as one that broke off is.
        on_end: called with the name of each stream after its last result, in the thread that takes the results.
        decode: `"cpu"`, or `"gpu"`: `device` decodes the frames, which stay there as `DeviceFrame`s in NV12 (see
            `DeviceVideoReader`). The model has to be on the same device.
        format: of the frames that the processor decodes, as `VideoReader` takes it; None is `"rgb"`.
        timeout, options: as `VideoReader` takes them.

    Raises:
        ConfigError: there is no source, two have one name, one is no path or address, or a setting has a wrong
            value.
    """

    def __init__(
        self,
        sources: Mapping[str, Source] | Sequence[Source],
        *,
        in_flight: int | None = None,
        files_at_once: int = 32,
        give_up_after: float = math.inf,
        retry_first: bool = True,
        on_end: Callable[[str], None] | None = None,
        decode: str = "cpu",
        device: str | Device = "cuda:0",
        format: str | None = None,
        timeout: float = 10.0,
        options: Mapping[str, str] | None = None,
    ) -> None:
        named = {name: source_text(source) for name, source in _named(sources).items()}
        if in_flight is not None:
            check_count("in_flight", "frames", in_flight)
        check_count("files_at_once", "files", files_at_once)
        check_seconds("give_up_after", give_up_after)
        check_seconds("timeout", timeout, zero=False)
        reading: dict[str, Any] = {"timeout": timeout, "options": options}
        if decode not in ("cpu", "gpu"):
            raise ConfigError(f"unknown decode {decode!r}; use 'cpu' or 'gpu'")
        if decode == "gpu":
            if format not in (None, "nv12"):
                raise ConfigError(f"decode='gpu' gives frames in NV12, not {format!r}; leave format out")
            reading["device"] = device
        else:
            reading["format"] = format or "rgb"
            check_format(reading["format"])
        self._done: queue.SimpleQueue[Stream | None] = queue.SimpleQueue()
        files = min(max(FILES_IN_FLIGHT // min(len(named), files_at_once), LEAST), MOST)
        self._files_at_once, self._on_end = files_at_once, on_end
        self._streams = {}
        for name, source in named.items():
            under_way = in_flight or (LIVE_IN_FLIGHT if looks_live(source) else files)
            settings = StreamSettings(under_way, give_up_after, retry_first, decode == "gpu", reading)
            self._streams[name] = Stream(name, source, settings, self._done)
        self._running = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the streams."""
        return tuple(self._streams)

    def run(self, model: Submits[Result], **parameters: Any) -> Iterator[StreamResult[Result]]:
        """The results of all streams as they come, those of one stream in its order; it ends with the last stream.

        The end of the iteration closes the streams, also where the caller leaves it early or it raises an error.

        Args:
            model: a wrapper, whose pipeline batches the frames of all streams.
            parameters: settings of each request, such as `conf=0.5`.

        Raises:
            ConfigError: a parameter has a wrong value, or the model does not have it.
            ClosedError: these streams were closed, or have been run.
        """
        if self._running:
            raise ClosedError("these streams have been run, or were closed; make new ones")
        self._running = True
        try:
            yield from self._results(lambda frame: model.submit(frame, **parameters))
        finally:
            self.close()

    def _results(self, submit: Callable[[AnyFrame], Future[Any]]) -> Iterator[StreamResult[Any]]:
        files = [stream for stream in self._streams.values() if not looks_live(stream.source)]
        waiting = deque(files[self._files_at_once :])
        for stream in self._streams.values():
            if stream not in waiting:
                stream.start(submit)
        open_streams = len(self._streams)
        while open_streams:
            ready = self._done.get()
            if ready is None:
                return
            item = ready.take()
            if item is not None:
                if isinstance(item.error, ConfigError):  # it would be the error of each frame
                    raise item.error
                yield item
                continue
            open_streams -= 1
            if waiting and ready in files:
                waiting.popleft().start(submit)
            if self._on_end is not None:
                self._on_end(ready.name)

    def info(self) -> dict[str, StreamInfo]:
        """The properties of the sources that have been opened, by stream name."""
        return {name: stream.info for name, stream in self._streams.items() if stream.info is not None}

    def health(self) -> dict[str, StreamHealth]:
        """The state and the statistics of each stream, by its name."""
        return {name: stream.health() for name, stream in self._streams.items()}

    def close(self) -> None:
        """Ends all streams, and the iteration. Frames that the model has not begun are cancelled.

        It waits at most 2 s for the threads that read: a source may hang, and its thread ends when the read does.
        """
        self._running = True
        for stream in self._streams.values():
            stream.stop()
        self._done.put(None)
        until = time.monotonic() + CLOSING
        for stream in self._streams.values():
            stream.join(until)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Streams {', '.join(self._streams)}>"


def _named(sources: Mapping[str, Source] | Sequence[Source]) -> dict[str, Source]:
    """The sources by the names of their streams."""
    is_one = isinstance(sources, (str, bytes, os.PathLike))
    if is_one or not isinstance(sources, Iterable):
        shown: Any = without_password(os.fsdecode(cast("str", sources))) if is_one else sources
        raise ConfigError(f"sources is a list or a table of sources, not one: [{shown!r}]")
    if isinstance(sources, Mapping):
        named = dict(sources)
    else:
        named = {}
        for source in sources:
            name = without_password(str(source))
            if name in named:
                raise ConfigError(f"two streams are called {name!r}; name them: {{'left': ..., 'right': ...}}")
            named[name] = source
    if not named:
        raise ConfigError("there is no stream; give one source at least")
    return named
