"""An HTTP server on this machine, for the tests of addresses."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]


def content(data: bytes, content_type: str | None) -> Answer:
    """Answers 200 with the data."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        if content_type is not None:
            request.send_header("Content-Type", content_type)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    return answer


@contextlib.contextmanager
def served(pages: dict[str, Answer]) -> Iterator[str]:
    """The address of a server with these pages, by path; others are 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = pages.get(self.path.partition("?")[0])
            with contextlib.suppress(OSError):  # the client may leave at any time
                if answer is None:
                    self.send_error(404)
                else:
                    answer(self)

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
