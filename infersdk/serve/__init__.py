"""`infersdk serve app.toml`: models over the Open Inference Protocol v2, as KServe and Triton speak it.

::

    with Server("app.toml", http_port=0).start() as server:
        client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.http_port}")

The parts, from the ports down::

    Server                      ports, signals, the end
      http.Application          ASGI: routes, bodies, compression     http.protocol: limits of connections
      grpc.server               the calls of the gRPC service         grpc.wire: raw contents without copies
        InferenceService        the calls of the protocol on plain data
          SharedMemoryRegions   parts of POSIX shared memory as inputs and outputs
          Repository            the models, their versions, loading and swapping
            Endpoint            one version: checks, Admission (bounded queue, priorities), Pipeline
              NetworkEndpoint   tensors in, tensors out
              ImageEndpoint     images in, boxes or classes out (`result_tensors`)

All of it runs in one event loop; images are decoded, batched and run by the threads of the pipelines.
"""

from __future__ import annotations

from .server import Server
from .settings import ServerSettings

__all__ = ["Server", "ServerSettings"]
