"""An RTSP server on this machine: GStreamer's, from Debian's packages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from waiting import free_port

__all__ = ["RtspServer"]


def _url(port: int) -> str:
    return f"rtsp://127.0.0.1:{port}/test"


class RtspServer:
    """GStreamer's RTSP server, in a process of the system's Python.

    Args:
        port: None takes a free one.
    """

    def __init__(self, port: int | None = None) -> None:
        port = port or free_port()
        self.port = port
        self.url = _url(port)
        python = shutil.which("python3", path="/usr/bin")
        script = Path(__file__).with_name("rtsp_server.py")
        self.process = subprocess.Popen(
            [python or "python3", str(script), str(port)], stdout=subprocess.PIPE, text=True
        )
        if self.process.stdout is None or self.process.stdout.readline() != "ready\n":
            self.stop()
            pytest.skip("GStreamer's RTSP server is not installed (gir1.2-gst-rtsp-server-1.0, python3-gi)")

    @staticmethod
    def free_url() -> str:
        """An address that no server answers at."""
        return _url(free_port())

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
