"""Many HTTP clients in one process, for the benchmarks and tests of servers: it prints JSON.

    python benchmarks/http_load.py http://127.0.0.1:8000/predict image.jpg --clients 64 --seconds 5

Each client keeps its connection and sends the next request when it has the answer, or, with `--rate`, when it is due.
The answers are counted by status; the times are those of requests, in seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit

import numpy as np


class Load:
    """One run of all clients."""

    def __init__(self, url: str, body: bytes, headers: Sequence[str], seconds: float) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        lines = [f"POST {path} HTTP/1.1", f"Host: {self._host}", f"Content-Length: {len(body)}", *headers]
        self._request = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        self._seconds = seconds
        self.times: dict[int, list[float]] = defaultdict(list)
        self.failures = 0

    async def client(self, moments: Iterator[float]) -> None:
        """Sends a request at each of the moments that no other client has taken, or as soon as it is free."""
        connect = functools.partial(asyncio.open_connection, self._host, self._port, limit=1 << 24)
        connection = None
        with contextlib.suppress(OSError):  # the loop tries again, and counts a failure
            connection = await connect()
        for moment in moments:
            if (wait := moment - perf_counter()) > 0:
                await asyncio.sleep(wait)
            try:
                connection = connection or await connect()
                await self._ask(*connection, moment)
            except (OSError, EOFError, ValueError):
                self.failures += 1
                connection = None
        if connection:
            connection[1].close()

    def moments(self, rate: float | None) -> Iterator[float]:
        """The moments of requests until the time is over: random ones, so many a second; without a rate now."""
        rng, moment = random.Random(1), perf_counter()
        end = moment + self._seconds
        while moment < end:
            moment = moment + rng.expovariate(rate) if rate else perf_counter()
            yield moment

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, started: float) -> None:
        writer.write(self._request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if length:
            await reader.readexactly(length)
        self.times[int(head.split(b" ", 2)[1])].append(perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("body", type=Path)
    parser.add_argument("--header", action="append", default=[])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--rate", type=float, help="requests a second; without it each client asks when it has its answer"
    )
    arguments = parser.parse_args()
    load = Load(arguments.url, arguments.body.read_bytes(), arguments.header, arguments.seconds)

    async def run() -> float:
        started, moments = perf_counter(), load.moments(arguments.rate)
        await asyncio.gather(*(load.client(moments) for _ in range(arguments.clients)))
        return perf_counter() - started

    try:
        import uvloop

        loop = uvloop.new_event_loop()
    except ImportError:
        loop = asyncio.new_event_loop()
    seconds = loop.run_until_complete(run())
    print(json.dumps({"seconds": seconds, "failures": load.failures, "statuses": summary(load.times)}))


def summary(times: dict[int, list[float]]) -> dict[str, dict[str, float]]:
    """By status: how many answers, and quantiles of their times."""
    result = {}
    for status, values in sorted(times.items()):
        quantiles = {f"p{q}": float(np.percentile(values, q)) for q in (50, 90, 99)}
        result[str(status)] = {"count": len(values), **quantiles}
    return result


if __name__ == "__main__":
    main()
