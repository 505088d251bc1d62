"""How the batches of a wrapper run: on the host, or on a CUDA device.

`Execution` runs calls and streams, and makes the batch buffers of pipelines. It knows a `Preprocessor` and the
functions that follow the network (`ModelStages`); it knows nothing of model families.
"""

from __future__ import annotations

from .buffer import DevicePostprocess, ModelStages, Outputs, Parameters, Timings
from .execution import Execution

__all__ = ["DevicePostprocess", "Execution", "ModelStages", "Outputs", "Parameters", "Timings"]
