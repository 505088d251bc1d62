"""The server: ports, signals and shutdown."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeAlias

from ..config import read, server_table
from ..core.files import read_regular
from ..core.processors import start_thread
from ..core.text import logger
from ..errors import BackendUnavailableError, ClosedError, ConfigError, DeadlineExceeded
from ..pipeline.request import check_seconds
from .access_log import AccessLog
from .http.app import Application
from .process import connection_limit, freeze
from .repository import Repository
from .service import InferenceService
from .settings import ServerSettings
from .watcher import signatures, watch
from .workers import all_results

__all__ = ["Server"]

#: The largest certificate or private key, in bytes.
_MAX_PEM = 1 << 20
#: Those of the extra `serve`.
_PACKAGES = (
    "grpc", "h11", "jinja2", "orjson", "prometheus_client", "python_multipart", "uvicorn",
    "tritonclient.grpc.service_pb2", *(("uvloop",) if sys.platform != "win32" else ()),
)  # fmt: skip

_log = logger("infersdk.serve")
_Close: TypeAlias = Callable[[], Awaitable[None]]


class Server:
    """The models of a configuration, served over HTTP and gRPC.

    ::

        with Server("app.toml").start() as server:      # in a new thread
            print(server.http_port, server.grpc_port)

        Server("app.toml").run()                         # in this thread, until SIGTERM or Ctrl-C

    Args:
        config: a file or a mapping with a table `models`, and perhaps a table `server` (`ServerSettings`).
        settings: override those of the table `server`.

    Attributes:
        http_port, grpc_port: the open ports; None before `run()`, and for a disabled protocol.

    Raises:
        ConfigError: a wrong setting, or a certificate that cannot be used.
        BackendUnavailableError: a package of the extra `serve`, or of `otel` for traces, is missing.
    """

    def __init__(self, config: str | os.PathLike[str] | Mapping[str, Any], **settings: Any) -> None:
        require_packages()
        table = server_table(read(config))
        ServerSettings.of(table)  # also values that `settings` replace: the watcher reads them again
        self.settings = ServerSettings.of(table, **settings)
        if self.settings.http_port is None and self.settings.grpc_port is None:
            raise ConfigError("server: http_port and grpc_port are both missing; set one of them")
        if (self.settings.certificate is None) != (self.settings.private_key is None):
            raise ConfigError("server: TLS needs both, certificate and private_key")
        _check_certificate(self.settings)
        self.http_port: int | None = None
        self.grpc_port: int | None = None
        self.repository = Repository(config, self.settings)
        self.service = InferenceService(self.repository, self.settings)
        self._stop: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._started = self._ends = False

    # ---- in the calling thread ----

    def run(self, listening: Callable[[Server], None] | None = None, *, owns_process: bool = False) -> None:
        """Serves until SIGTERM, SIGINT or `stop()`; running requests then get `drain` seconds to end.

        Args:
            listening: called when the ports are open and all models are ready.
            owns_process: the process only serves: loaded objects are excluded from garbage collection, which stops all
                threads.

        Raises:
            InferSDKError: a model cannot be loaded.
            ConfigError: a port cannot be listened on.
            ClosedError: the server has been started before.
        """
        self._start_once()
        self._run(listening, owns_process)

    def _start_once(self) -> None:
        if self._started:
            raise ClosedError("a Server runs once, and this one was started before; make a new Server")
        self._started = True

    def _run(self, listening: Callable[[Server], None] | None, owns_process: bool) -> None:
        if sys.platform == "win32":  # for which there is no uvloop
            from asyncio import run
        else:
            from uvloop import run
        run(self._serve(listening or (lambda server: None), owns_process))

    async def _serve(self, listening: Callable[[Server], None], owns_process: bool) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            loop.call_soon_threadsafe(ended.set)

        self._stop = stop
        if self._ends:  # stop() was called before
            stop()
        log = AccessLog(enabled=self.settings.access_log)
        most = connection_limit(self.settings)
        ports: list[_Close] = []
        try:
            with _signals(stop):
                try:
                    # The ports open first, so that clients learn that the models are not ready.
                    if self.settings.http_port is not None:
                        ports.append(await self._open_http(log, most))
                    if self.settings.grpc_port is not None:
                        from .grpc.server import open_grpc

                        self.grpc_port, close = await open_grpc(self.service, log, most)
                        ports.append(close)
                    work = asyncio.ensure_future(self._load_and_watch(listening, owns_process))
                    ending = asyncio.ensure_future(ended.wait())
                    await asyncio.wait([work, ending], return_when=asyncio.FIRST_COMPLETED)
                    ending.cancel()
                    if work.done():
                        work.result()  # raises the error that ended it
                    work.cancel()
                    self.service.stopping = True
                finally:
                    await asyncio.gather(*(close() for close in ports))  # each waits for its requests
        finally:
            self._stop = lambda: None
            await self.repository.close()
            self.service.regions.close()
            log.close()
            if self.service.tracing is not None:
                await asyncio.to_thread(self.service.tracing.close)

    async def _load_and_watch(self, listening: Callable[[Server], None], owns_process: bool) -> None:
        """Loads all models, then reloads failed and changed ones until it is cancelled."""
        before_loading = await asyncio.to_thread(signatures, self.repository.config)
        await self.repository.load_all()
        if owns_process:
            freeze()
            self.repository.on_closed = freeze
        listening(self)
        watching = [self.repository.reload_failed()]
        if self.settings.verify is not None:
            watching.append(self.repository.verify_samples(self.settings.verify))
        if self.settings.watch is not None:
            watching.append(watch(self.repository, self.settings.watch, before_loading))
        await all_results(watching)

    async def _open_http(self, log: AccessLog, most: int) -> _Close:
        """Opens the HTTP port with at most `most` connections."""
        import uvicorn

        from .http.connection import Connection, Connections

        application = Application(self.service, log)
        listener = _listen(self.settings)
        self.http_port = listener.getsockname()[1]
        connection = partial(Connection, limits=self.settings, open_connections=Connections(most))
        config = uvicorn.Config(
            application, http=connection, ws="none", lifespan="off", log_config=None,
            log_level="error", access_log=False, server_header=False, timeout_keep_alive=self.settings.keep_alive,
            h11_max_incomplete_event_size=self.settings.max_header_bytes,
            ssl_certfile=self.settings.certificate, ssl_keyfile=self.settings.private_key,
        )  # fmt: skip
        config.timeout_graceful_shutdown = self.settings.drain  # passed to wait_for(), so a float too
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # `_signals()` handles them
        task = asyncio.ensure_future(server.serve([listener]))

        async def close() -> None:
            server.should_exit = True
            for one in server.servers:  # uvicorn polls `should_exit` ten times a second
                one.close()
            await task

        while not server.started:
            if task.done():
                await task
                raise ConfigError("server: the HTTP port cannot be served; the log has the reason")
            await asyncio.sleep(0.005)
        return close

    # ---- in a new thread ----

    def start(self, timeout: float | None = 300.0) -> Server:
        """Serves in a new thread; returns when all models are ready. Ctrl-C before that stops the server.

        Args:
            timeout: seconds within which all models must be ready; None: no limit.

        Raises:
            DeadlineExceeded: a model was not ready in time; the server stops.
            ClosedError: `stop()` was called before all models were ready.
            InputError: `timeout` is no time in seconds.
            OutOfMemoryError: the system has no further thread.
            InferSDKError: as `run()`.
        """
        timeout = check_seconds("timeout", timeout, without="300 seconds")
        self._start_once()
        ready: Future[None] = Future()

        def work() -> None:
            try:
                self._run(lambda server: ready.set_result(None), owns_process=False)
                if not ready.done():
                    raise ClosedError("the server was stopped before its models were ready; make a new Server")
            except BaseException as error:
                if ready.done():
                    raise
                ready.set_exception(error)

        # A local name: another thread may call stop() before it is started, and then it ends by itself.
        thread = self._thread = threading.Thread(target=work, name="infersdk-serve", daemon=True)
        atexit.register(self._stop_at_exit)
        try:
            start_thread(thread, "the server")
            in_time = wait([ready], timeout).done
            if in_time:
                ready.result()
        except BaseException:  # Ctrl-C included
            self.stop()
            raise
        if not in_time:
            self._end()
            raise DeadlineExceeded(
                f"the models were not ready within {timeout:g} s, and the server ends; give start() a longer timeout"
            )
        return self

    def stop(self) -> None:
        """Stops the server like SIGTERM, from any thread. After `start()` it waits for the end.

        A server that has not begun yet ends when it begins.
        """
        self._end()
        if (thread := self._thread) is not None:  # another thread may stop it too
            if thread.is_alive():  # it may have failed to start
                thread.join()
            self._thread = None
            atexit.unregister(self._stop_at_exit)

    def _end(self) -> None:
        """Asks the server to end, before it begins too."""
        self._ends = True
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._stop()

    def _stop_at_exit(self) -> None:
        """Joins the thread: a thread in a runtime could crash the process while the interpreter shuts down."""
        self._end()
        if self._thread is not None:
            self._thread.join(self.settings.drain + 5.0)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def require_packages() -> None:
    """Raises BackendUnavailableError if a package of the extra `serve` is missing."""
    try:
        for name in _PACKAGES:
            importlib.import_module(name)
    except ImportError as error:
        raise BackendUnavailableError(f'serving needs more packages ({error}): pip install "infersdk[serve]"') from None


def _check_certificate(settings: ServerSettings) -> None:
    """Raises ConfigError if the certificate or the key cannot be used."""
    if settings.certificate is None or settings.private_key is None:
        return
    import ssl  # here: the Python of Triton's python backend lacks it

    for path in (settings.certificate, settings.private_key):
        try:
            read_regular(path, _MAX_PEM)
        except OSError as error:
            raise ConfigError(f"server: {path} cannot be read: {error.strerror}") from None
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            settings.certificate,
            settings.private_key,
            password=lambda: "",  # avoids a prompt on the terminal
        )
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"server: certificate {settings.certificate} and private_key {settings.private_key} cannot be used: "
            f"{error}; they are a pair of PEM files, and the key has no passphrase"
        ) from None


def _listen(settings: ServerSettings) -> socket.socket:
    host, port = settings.host, settings.http_port or 0
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"server: cannot listen on {settings.address(port)}: {error.strerror or error}") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux closes connections whose client receives nothing for so long
        milliseconds = max(1, round(settings.read_timeout * 1000))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return listener


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` on SIGTERM and Ctrl-C, and on Ctrl-Break of Windows, if the server runs in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGBREAK") if hasattr(signal, name)]
    # Loops of Windows have no add_signal_handler().
    before = [signal.signal(number, lambda *_: stop()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not installed by Python
