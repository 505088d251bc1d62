"""A server's end with its process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAM = """
    import sys, urllib.request
    from infersdk.data import DETECTOR
    from infersdk.serve import Server

    models = {"digits": {"type": "yolov5", "path": str(DETECTOR)}}
    server = Server({"models": models, "server": {"http_port": 0, "grpc_port": 0, "access_log": False}}).start()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/v2/health/ready", timeout=30) as answer:
        print(answer.status, flush=True)
"""


def test_a_process_that_ends_stops_its_server(tmp_path: Path) -> None:
    """Its thread does not go on while the interpreter is taken down."""
    program = textwrap.dedent(PROGRAM) + "\nimport atexit, threading\n" + textwrap.dedent(
        """
        def left():
            print([thread.name for thread in threading.enumerate() if thread.name == "infersdk-serve"], flush=True)

        atexit._run_exitfuncs()
        left()
        """
    )  # fmt: skip
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout.split("\n")[:2]) == (0, ["200", "[]"]), done.stderr
