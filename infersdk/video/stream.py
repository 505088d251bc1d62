"""One source of `Streams`: its reading thread and its frames in flight."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from ..core.text import logger, without_password
from ..errors import InferSDKError, Overloaded, VideoError
from .nvdec import DeviceVideoReader
from .reader import VideoReader
from .source_reader import is_camera

if TYPE_CHECKING:
    import os

    from .frames import AnyFrame

__all__ = ["Source", "Stream", "StreamHealth", "StreamInfo", "StreamResult", "StreamSettings", "looks_live"]

Result = TypeVar("Result")
Source: TypeAlias = "str | os.PathLike[str] | int"

_log = logger("infersdk.video")

#: Seconds before the first attempt to connect again, and at most; each attempt doubles them.
BACKOFF, LONGEST_BACKOFF = 0.5, 30.0
#: Decoded frames of a live source that may wait for the model, and for how many seconds if a newer one is there. Some
#: senders and decoders give several frames at once; a model that is free gets all of them.
WAITING, WAITS = 8, 0.03
#: The last results whose latency is kept for the statistics of a stream.
REMEMBERED = 1000


@dataclass(frozen=True)
class StreamResult(Generic[Result]):
    """The result of one frame.

    Attributes:
        stream: the name of the stream.
        frame: the frame, with its number and its time in the stream; None if the stream itself failed.
        result: the model's result; None if there is an `error`.
        error: why there is no result: the model failed on this frame, or the stream broke off.
        seconds: from the decoded frame to its result.
    """

    stream: str
    frame: AnyFrame | None
    result: Result | None
    error: Exception | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class StreamInfo:
    """The properties of an open source.

    Attributes:
        size: (width, height) of its frames.
        fps, frames, duration, live: as those of `VideoReader`.
    """

    size: tuple[int, int]
    fps: float | None
    frames: int | None
    duration: float | None
    live: bool


@dataclass(frozen=True)
class StreamHealth:
    """The state of a stream, and its statistics.

    Attributes:
        state: `"connecting"`, `"running"`, `"waiting"` (before it connects again), `"ended"` or `"failed"`.
        frames: frames that were given to the model.
        results, errors: how many of them ended in a result and in an error.
        dropped: frames of a live source that newer ones replaced before the model took them.
        connects: how often the source was opened.
        fps: results a second, over the last results.
        silent: seconds since the last frame came; None before the first.
        p50, p99: seconds from a frame to its result, over the last 1,000.
        error: the last error of the source; empty if there was none.
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


@dataclass(frozen=True)
class StreamSettings:
    """How `Streams` reads each of its sources; the fields are those of `Streams`."""

    in_flight: int
    give_up_after: float
    retry_first: bool
    on_device: bool
    reading: Mapping[str, Any]


def looks_live(source: str) -> bool:
    """Whether a source that was never open is expected to be live: an address or a camera."""
    return "://" in source or is_camera(source)


class Stream:
    """One source: a thread that decodes it and gives its frames to the model, and its frames under way in order.

    Another thread opens the source, and waits for its end. A thread in between that takes the frames costs more than it
    seems to on few cores: 80 live streams on a GPU then have 1,400 results a second in place of 2,400.

    Args:
        settings: how it is read.
        done: gets this object once for each result that is ready, and once at the end.
    """

    def __init__(
        self, name: str, source: str, settings: StreamSettings, done: queue.SimpleQueue[Stream | None]
    ) -> None:
        self.name, self.source = name, source
        self.info: StreamInfo | None = None
        self._settings, self._done = settings, done
        self._stopped = threading.Event()
        # `with` takes the lock itself: Ctrl-C in the Python code of a condition would leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._free = settings.in_flight  # how many further frames the model may have
        #: Decoded frames that wait for the model, and what one thread at a time holds that gives them to it.
        self._waiting: deque[AnyFrame] = deque()
        self._giving = threading.Lock()
        self._fault: Exception | None = None  # of the model's submit()
        #: Frames under way and results that wait, in order: (frame, its request or error).
        self._items: deque[tuple[AnyFrame | None, Future[Any] | Exception | None]] = deque()
        self._ready = 0  # how many items at the head have been announced
        self._submit: Callable[[AnyFrame], Future[Any]]
        self._reader: VideoReader | DeviceVideoReader | None = None
        self._threads: list[threading.Thread] = []
        #: The decoder of the GPU, from one connection to the next.
        self._kept: dict[str, Any] = {"decoders": []} if settings.on_device else {}
        self._state, self._error = "connecting", ""
        self._frames = self._results = self._errors = self._dropped = self._connects = 0
        self._first = 0.0  # when the first frame of all was decoded
        self._numbers = 0  # of all frames so far, those of earlier connections included
        self._time = 0.0  # of the last frame
        self._last: float | None = None
        self._latencies: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)

    def start(self, submit: Callable[[AnyFrame], Future[Any]]) -> None:
        self._submit = submit
        self._run(self._work, f"infersdk-stream-{self.name}")

    def _run(self, work: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        self._stopped.set()
        with self._lock:
            self._waiting.clear()
            self._changed.notify_all()
        if (reader := self._reader) is not None:
            self._run(reader.close, f"infersdk-close-{self.name}")  # a source may hang in a read
        with self._lock:
            requests = [request for _, request in self._items if isinstance(request, Future)]
        for request in requests:
            request.cancel()

    def join(self, until: float) -> None:
        """Waits for the end of the threads of a stream that was stopped, up to this time of `time.monotonic()`."""
        for thread in tuple(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    # ---- the thread that reads ----

    def _work(self) -> None:
        problem: Exception | None = None  # its traceback refers to this frame, and to the memory of a reader's frames
        try:
            pause = BACKOFF
            lost = time.monotonic()
            while not self._stopped.is_set():
                before = self._frames
                try:
                    if not self._read():
                        self._state = "ended"
                        return
                    problem = VideoError(f"the live source {without_password(self.source)!r} ended")
                except VideoError as error:
                    problem = error
                if self._stopped.is_set():
                    return
                self._error = str(problem)
                if self._frames > before:
                    pause, lost = BACKOFF, time.monotonic()
                if not self._tries_again(time.monotonic() + pause - lost):
                    self._state = "failed"
                    self._add(None, problem)
                    return
                self._state = "waiting"
                _log.warning("stream %r: %s; it is opened again in %g s", self.name, problem, pause)
                problem = None
                self._stopped.wait(pause)
                pause = min(pause * 2, LONGEST_BACKOFF)
                self._state = "connecting"
        except Exception as error:  # of the model's submit(), or a fault of ours
            if not self._stopped.is_set():
                self._state, self._error = "failed", str(error)
                self._add(None, error)
        finally:
            problem = None
            self._kept.clear()
            self._add(None, None)

    def _tries_again(self, outage: float) -> bool:
        """Whether the source is opened again, `outage` seconds after its last frame."""
        live = looks_live(self.source) if self.info is None else self.info.live
        return live and outage <= self._settings.give_up_after and (self._settings.retry_first or self._connects > 0)

    def _read(self) -> bool:
        """Reads the source to its end; whether it is a live one."""
        kind = DeviceVideoReader if self._settings.on_device else VideoReader
        reader = kind(self.source, prefetch=WAITING, **self._settings.reading, **self._kept)
        self._reader = reader
        self.info = StreamInfo(reader.size, reader.fps, reader.frames, reader.duration, reader.live)
        self._connects += 1
        self._state = "running"
        numbers, shift = self._numbers, None

        def receive(frame: AnyFrame) -> None:
            nonlocal shift
            self._last = time.monotonic()
            if shift is None:  # numbers and times go on where the source was opened again
                self._first = self._first or frame.decoded
                # By the clock, but later than all before, which a source may send ahead of time.
                at = max(frame.decoded - self._first, self._time + 1 / (reader.fps or 30.0))
                shift = at - frame.time if numbers else 0.0
            frame.time += shift
            self._time = frame.time
            frame.number += numbers
            self._numbers = frame.number + 1
            self._wait_for_model(frame, reader.live)

        try:
            if not self._stopped.is_set():  # stop() closes no reader that is still opening its source
                reader.pass_to(receive)
            if reader.damage:
                self._error = reader.damage
        finally:
            with self._lock:
                self._dropped += reader.dropped
                self._changed.wait_for(lambda: not self._waiting or self._fault or self._stopped.is_set())
            with self._giving:  # a thread may have taken the last frame, and its result comes before the end
                self._reader = None
            with suppress(InferSDKError):
                reader.close()
        if self._fault is not None:
            raise self._fault
        return reader.live

    def _wait_for_model(self, frame: AnyFrame, live: bool) -> None:
        """Gives a frame to the model; one of a live source now or later, and only if no newer ones replace it."""
        with self._lock:
            if not live:
                self._changed.wait_for(lambda: self._free or self._stopped.is_set())
            if self._stopped.is_set():
                return
            self._waiting.append(frame)
            self._drop_replaced()
        self._give()
        if self._fault is not None:
            raise self._fault

    def _give(self) -> None:
        """Gives the frames that wait to the model, as many as it may have."""
        with self._giving:
            while (frame := self._next_frame()) is not None:
                try:
                    request = self._submit(frame)
                except Overloaded as error:  # it is this frame's alone
                    request = Future()
                    request.set_exception(error)
                except Exception as error:
                    with self._lock:
                        self._fault = error  # raised in the thread that decodes, with the next frame
                        self._changed.notify_all()
                    return
                self._frames += 1
                self._add(frame, request)

    def _next_frame(self) -> AnyFrame | None:
        """The frame that the model gets next, if there is one and the model may have it."""
        with self._lock:
            if not self._waiting or not self._free:
                return None
            self._drop_replaced()
            self._free -= 1
            self._changed.notify_all()
            return self._waiting.popleft()

    def _drop_replaced(self) -> None:
        """Drops frames that newer ones replace, also while the model is busy: their memory is used again at once."""
        oldest = time.monotonic() - WAITS
        while len(self._waiting) > WAITING or (len(self._waiting) > 1 and self._waiting[0].decoded < oldest):
            self._waiting.popleft()
            self._dropped += 1

    def _add(self, frame: AnyFrame | None, request: Future[Any] | Exception | None) -> None:
        with self._lock:
            self._items.append((frame, request))
        if isinstance(request, Future):
            request.add_done_callback(lambda _: self._announce())
        else:
            self._announce()

    def _announce(self) -> None:
        """Announces further results that are ready, in order."""
        with self._lock:
            while self._ready < len(self._items):
                request = self._items[self._ready][1]
                if isinstance(request, Future) and not request.done():
                    return
                self._ready += 1
                self._done.put(self)

    # ---- the thread that takes results ----

    def take(self) -> StreamResult[Any] | None:
        """The next result; None at the end of the stream."""
        with self._lock:
            frame, request = self._items.popleft()
            self._ready -= 1
            self._free += frame is not None
            self._changed.notify_all()
        if self._waiting:
            self._give()
        if request is None:
            return None
        if isinstance(request, Exception):
            return StreamResult(self.name, None, None, request)
        assert frame is not None
        now = time.monotonic()
        seconds = now - frame.decoded
        error = CancelledError() if request.cancelled() else request.exception()
        if error is not None:
            self._errors += 1
            shown = error if isinstance(error, Exception) else VideoError(f"the request was ended: {error!r}")
            return StreamResult(self.name, frame, None, shown, seconds)
        self._results += 1
        self._latencies.append((now, seconds))
        return StreamResult(self.name, frame, request.result(), None, seconds)

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
