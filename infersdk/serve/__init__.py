"""`infersdk serve app.toml`: a server for the Open Inference Protocol v2 of KServe and Triton.

::

    with Server("app.toml", http_port=0).start() as server:
        client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.http_port}")

The structure::

    Server                      ports, signals, shutdown
      http.Application          ASGI: routes, bodies, compression     http.connection: limits of connections
      grpc.server               the calls of the gRPC service         grpc.infer_codec: encoding of tensors
        InferenceService        the calls of the protocol on plain data
          SharedMemoryRegions   parts of POSIX shared memory as inputs and outputs
          Repository            the models, their versions, loading and swapping
            Endpoint            one version: checks, Admission (bounded queue, priorities), Pipeline
              NetworkEndpoint   tensors in, tensors out
              ImageEndpoint     images in, boxes or classes out (`result_tensors`)

One event loop runs the server; the threads of the pipelines decode, batch and run images.
"""

from __future__ import annotations

from .server import Server
from .settings import ServerSettings

__all__ = ["Server", "ServerSettings"]
