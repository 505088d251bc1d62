"""Many videos and cameras at once, through one model."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from ..errors import ClosedError, ConfigError, InferSDKError, VideoError
from .reader import Frame, VideoReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

__all__ = ["StreamHealth", "StreamResult", "Streams"]

Result = TypeVar("Result")
Source: TypeAlias = "str | os.PathLike[str] | int"

#: Seconds before the first attempt to connect anew, and at most; each attempt doubles it.
BACKOFF, LONGEST_BACKOFF = 0.5, 30.0
#: The last results whose latency is kept for the statistics of a stream.
REMEMBERED = 1000


class Submits(Protocol[Result]):
    """What runs the frames: every wrapper, and what is composed of wrappers."""

    def submit(self, image: Any, /, **parameters: Any) -> Future[Result]: ...


@dataclass(frozen=True)
class StreamResult(Generic[Result]):
    """What became of a frame.

    Attributes:
        stream: the name of the stream.
        frame: the frame, with its number and its time in the stream; None where the stream itself failed.
        result: the model's result; None where there is an `error`.
        error: why there is no result: the model failed on this frame, or the stream broke off.
        seconds: from the frame, decoded, to its result.
    """

    stream: str
    frame: Frame | None
    result: Result | None
    error: Exception | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class StreamHealth:
    """How a stream is.

    Attributes:
        state: `"connecting"`, `"running"`, `"waiting"` (to connect anew), `"ended"` or `"failed"`.
        frames: frames that were given to the model.
        results, errors: how many of them ended in a result and in an error.
        dropped: frames of a live source that newer ones replaced before the model took them.
        connects: how often the source was opened.
        fps: results a second, over the last results.
        silent: seconds since the last frame came; None before the first.
        p50, p99: seconds from a frame to its result, over the last 1,000.
        error: the last thing that went wrong with the source; empty if nothing did.
    """

    state: str
    frames: int
    results: int
    errors: int
    dropped: int
    connects: int
    fps: float
    silent: float | None
    p50: float
    p99: float
    error: str


class Streams:
    """Videos and cameras that share one model: their frames fill its batches together.

    ::

        with Streams({"door": "rtsp://camera/door", "hall": "hall.mp4"}) as streams:
            for item in streams.run(detector):
                print(item.stream, item.frame.time, item.result)

    Each stream keeps its own order. A file gives all of its frames, and waits for the model. A live source gives its
    newest frame when the model is ready for one; those that it replaced are counted. A live source that breaks off, or
    sends nothing for `timeout` seconds, is opened anew after a pause that doubles, up to 30 s. What happens to one
    stream disturbs no other.

    Args:
        sources: what `VideoReader` takes, by name; or a list, whose items are named as they are written.
        in_flight: frames of one stream that the model has, or whose results wait to be taken.
        reconnect: whether live sources are opened anew. Otherwise they end with an error.
        format, timeout, options: as `VideoReader` takes them.

    Raises:
        ConfigError: there is no source, two have one name, or a setting has a wrong value.
    """

    def __init__(
        self,
        sources: Mapping[str, Source] | Sequence[Source],
        *,
        in_flight: int = 4,
        reconnect: bool = True,
        format: str = "rgb",
        timeout: float = 10.0,
        options: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(sources, (str, os.PathLike)):
            raise ConfigError(f"sources is a list or a table of sources, not one: [{str(sources)!r}]")
        named = list(sources.items()) if isinstance(sources, Mapping) else [(str(source), source) for source in sources]
        if not named:
            raise ConfigError("there is no stream; give one source at least")
        names = [name for name, _ in named]
        if double := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"two streams are called {double!r}; name them: {{'left': ..., 'right': ...}}")
        if isinstance(in_flight, bool) or not isinstance(in_flight, int) or in_flight < 1:
            raise ConfigError(f"in_flight is a number of frames from 1, not {in_flight!r}")
        reading = {"format": format, "timeout": timeout, "options": options}
        self._done: queue.SimpleQueue[_Stream | None] = queue.SimpleQueue()
        self._streams = {
            name: _Stream(name, source, in_flight, reconnect, reading, self._done) for name, source in named
        }
        self._running = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the streams."""
        return tuple(self._streams)

    def run(self, model: Submits[Result], **parameters: Any) -> Iterator[StreamResult[Result]]:
        """The results of all streams as they come, those of one stream in its order; it ends with the last stream.

        Args:
            model: a wrapper, whose pipeline batches the frames of all streams.
            parameters: settings of each request, such as `conf=0.5`.

        Raises:
            ClosedError: these streams were closed, or have been run.
        """
        if self._running:
            raise ClosedError("these streams have been run, or were closed; make new ones")
        self._running = True
        for stream in self._streams.values():
            stream.start(lambda frame: model.submit(frame, **parameters))
        open_streams = len(self._streams)
        while open_streams:
            stream_or_stop = self._done.get()
            if stream_or_stop is None:
                return
            item = stream_or_stop.take()
            if item is None:
                open_streams -= 1
            else:
                yield item

    def health(self) -> dict[str, StreamHealth]:
        """How each stream is, by its name."""
        return {name: stream.health() for name, stream in self._streams.items()}

    def close(self) -> None:
        """Ends all streams, and the iteration. Frames that the model has not begun are cancelled."""
        self._running = True
        for stream in self._streams.values():
            stream.stop()
        self._done.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Streams {', '.join(self._streams)}>"


class _Stream:
    """One source: a thread that reads it, and its frames under way in order."""

    def __init__(
        self,
        name: str,
        source: Source,
        in_flight: int,
        reconnect: bool,
        reading: Mapping[str, Any],
        done: queue.SimpleQueue[_Stream | None],
    ) -> None:
        self.name, self.source, self.reconnect = name, source, reconnect
        self._reading, self._done = reading, done
        self._slots = threading.Semaphore(in_flight)
        self._stopped = threading.Event()
        self._guard = threading.Lock()
        #: Frames under way and what came of those before, in order: (frame, when it came, its request or error).
        self._items: deque[tuple[Frame | None, float, Future[Any] | Exception | None]] = deque()
        self._ready = 0  # of these, how many at the head have been announced
        self._submit: Callable[[Frame], Future[Any]]
        self._reader: VideoReader | None = None
        self._state, self._error = "connecting", ""
        self._frames = self._results = self._errors = self._dropped = self._connects = 0
        self._last: float | None = None
        self._latencies: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)

    def start(self, submit: Callable[[Frame], Future[Any]]) -> None:
        self._submit = submit
        threading.Thread(target=self._work, name=f"infersdk-stream-{self.name}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._slots.release()
        if (reader := self._reader) is not None:
            threading.Thread(target=reader.close, daemon=True).start()  # a source may hang in a read
        with self._guard:
            requests = [request for _, _, request in self._items if isinstance(request, Future)]
        for request in requests:
            request.cancel()

    # ---- the thread that reads ----

    def _work(self) -> None:
        try:
            pause = BACKOFF
            while not self._stopped.is_set():
                live = False
                before = self._frames
                try:
                    live = self._read()
                    if not live:
                        self._state = "ended"
                        return
                    error: Exception = VideoError(f"the live source {self.source!r} ended")
                except InferSDKError as failure:
                    error = failure
                    live = live or self._is_live()
                if self._stopped.is_set():
                    return
                self._error = str(error)
                if not (live and self.reconnect):
                    self._state = "failed"
                    self._add(None, error)
                    return
                pause = BACKOFF if self._frames > before else min(pause * 2, LONGEST_BACKOFF)
                self._state = "waiting"
                self._stopped.wait(pause)
                self._state = "connecting"
        except Exception as error:  # a fault of the model's submit(), or of ours: said, not swallowed
            self._state, self._error = "failed", str(error)
            self._add(None, error)
        finally:
            self._add(None, None)

    def _is_live(self) -> bool:
        """Whether a source that cannot be opened is worth another attempt."""
        text = str(self.source)
        return isinstance(self.source, int) or "://" in text or text.startswith("/dev/")

    def _read(self) -> bool:
        """Reads the source to its end; whether it is a live one."""
        reader = VideoReader(self.source, prefetch=1 if self._is_live() else 4, **self._reading)
        self._reader = reader
        self._connects += 1
        self._state = "running"
        before = self._dropped
        try:
            for frame in reader:
                came = time.monotonic()
                self._last = came
                self._dropped = before + reader.dropped
                self._slots.acquire()
                if self._stopped.is_set():
                    break
                self._frames += 1
                self._add(frame, self._submit(frame), came)
            if reader.damage:
                self._error = reader.damage
            return reader.live
        finally:
            self._dropped = before + reader.dropped
            self._reader = None
            with suppress(InferSDKError):
                reader.close()

    def _add(self, frame: Frame | None, request: Future[Any] | Exception | None, came: float = 0.0) -> None:
        with self._guard:
            self._items.append((frame, came, request))
        if isinstance(request, Future):
            request.add_done_callback(lambda _: self._announce())
        else:
            self._announce()

    def _announce(self) -> None:
        """Tells the thread that takes results how many more are ready, in order."""
        with self._guard:
            while self._ready < len(self._items):
                request = self._items[self._ready][2]
                if isinstance(request, Future) and not request.done():
                    return
                self._ready += 1
                self._done.put(self)

    # ---- the thread that takes results ----

    def take(self) -> StreamResult[Any] | None:
        """The next result; None once the stream is over."""
        with self._guard:
            frame, came, request = self._items.popleft()
            self._ready -= 1
        if request is None:
            return None
        if isinstance(request, Exception):
            return StreamResult(self.name, None, None, request)
        self._slots.release()
        now = time.monotonic()
        error: BaseException | None
        try:
            error = request.exception()
        except BaseException as cancelled:  # CancelledError
            error = cancelled
        self._latencies.append((now, now - came))
        if error is not None:
            self._errors += 1
            shown = error if isinstance(error, Exception) else VideoError(f"the request was ended: {error!r}")
            return StreamResult(self.name, frame, None, shown, now - came)
        self._results += 1
        return StreamResult(self.name, frame, request.result(), None, now - came)

    def health(self) -> StreamHealth:
        recent = list(self._latencies)
        seconds = sorted(latency for _, latency in recent)
        span = recent[-1][0] - recent[0][0] if len(recent) > 1 else 0.0
        return StreamHealth(
            state=self._state,
            frames=self._frames,
            results=self._results,
            errors=self._errors,
            dropped=self._dropped,
            connects=self._connects,
            fps=(len(recent) - 1) / span if span else 0.0,
            silent=None if self._last is None else time.monotonic() - self._last,
            p50=seconds[len(seconds) // 2] if seconds else 0.0,
            p99=seconds[min(len(seconds) * 99 // 100, len(seconds) - 1)] if seconds else 0.0,
            error=self._error,
        )
