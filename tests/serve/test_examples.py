"""The public example programs of tritonclient, unmodified, against models that compute what theirs do.

`INFERSDK_TRITON_EXAMPLES` names the folder `src/python/examples` of a checkout of the client's repository.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_requests import SHARED_MEMORY, serving

FOLDER = os.environ.get("INFERSDK_TRITON_EXAMPLES", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not FOLDER, reason="no examples: INFERSDK_TRITON_EXAMPLES names their folder in a checkout of the client"
    ),
]
HTTP = [
    "simple_http_infer_client", "simple_http_async_infer_client", "simple_http_aio_infer_client",
    "simple_http_string_infer_client", "simple_http_shm_client", "simple_http_shm_string_client",
    "simple_http_health_metadata",
]  # fmt: skip
GRPC = [
    "simple_grpc_infer_client", "simple_grpc_async_infer_client", "simple_grpc_aio_infer_client",
    "simple_grpc_string_infer_client", "simple_grpc_shm_client", "simple_grpc_shm_string_client",
    "simple_grpc_health_metadata", "simple_grpc_keepalive_client", "simple_grpc_custom_args_client",
    "grpc_explicit_int_content_client", "grpc_explicit_int8_content_client",
    "grpc_explicit_byte_content_client",
]  # fmt: skip
COMPRESSION = {
    "simple_http_infer_client": [
        "--request-compression-algorithm",
        "gzip",
        "--response-compression-algorithm",
        "deflate",
    ],
    "simple_grpc_infer_client": ["-C", "gzip"],
}  # fmt: skip
#: They need a model with state, one that answers more than once, a GPU, or a change of the configuration by the client.
OTHERS = {
    "simple_grpc_sequence_stream_infer_client", "simple_grpc_sequence_sync_infer_client", "simple_grpc_custom_repeat",
    "simple_http_sequence_sync_infer_client", "simple_grpc_aio_sequence_stream_infer_client",
    "simple_grpc_cudashm_client", "simple_http_cudashm_client", "simple_grpc_model_control",
    "simple_http_model_control",
}  # fmt: skip


@pytest.fixture(scope="module")
def named(tables: dict[str, Any]) -> Iterator[Any]:
    """A server that calls itself as the examples expect it."""
    with serving(tables, shared_memory_prefix=SHARED_MEMORY, name="triton") as running:
        yield running


def run(program: str, port: int, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, f"{FOLDER}/{program}.py", "-u", f"localhost:{port}", *arguments],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "FAILED" not in done.stdout
    assert "error:" not in done.stdout


@pytest.mark.parametrize("program", HTTP)
def test_http(named: Any, program: str) -> None:
    run(program, named.http_port)


@pytest.mark.parametrize("program", GRPC)
def test_grpc(named: Any, program: str) -> None:
    run(program, named.grpc_port)


@pytest.mark.parametrize("program", COMPRESSION)
def test_compression(named: Any, program: str) -> None:
    run(program, named.http_port if "http" in program else named.grpc_port, *COMPRESSION[program])


def test_reused_inputs(named: Any) -> None:
    for protocol, port in (("http", named.http_port), ("grpc", named.grpc_port)):
        run("reuse_infer_objects_client", port, "-i", protocol)


def test_no_simple_example_is_forgotten() -> None:
    assert {path.stem for path in Path(FOLDER).glob("simple_*.py")} <= {*HTTP, *GRPC, *OTHERS}
