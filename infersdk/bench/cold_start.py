"""The cold start: the time from the start of a process to its first result.

Like an application, the process imports infersdk, loads the model with its wrapper and calls it once. Files are in the
page cache after the first start; the cache of the backend may be filled or empty.
"""

from __future__ import annotations

import json
import subprocess
from time import monotonic
from typing import Any

from ..core.interpreter import own_interpreter
from .worker_process import StepError, import_path

__all__ = ["STAGES", "cold_start"]

STAGES = ("interpreter", "import", "load", "first result")

#: The clock is the same for all processes of the machine.
_PROGRAM = """
import time
times = [time.monotonic()]
import json, sys
order = json.loads(sys.argv[1])
sys.path[:] = order["path"]
if order["type"] == "arrays":
    import infersdk
    times.append(time.monotonic())
    model = infersdk.load(order["model"], **order["arguments"], **order["options"])
    times.append(time.monotonic())
    from infersdk.loading.samples import random_inputs
    model(random_inputs(model.input_specs, batch=order["batch"], shapes=order["shapes"]))
else:
    from infersdk import models
    times.append(time.monotonic())
    model = models.load(
        order["model"], type=order["type"], options=order["options"], **order["arguments"], **order["wrapper"]
    )
    times.append(time.monotonic())
    model(order["image"])
times.append(time.monotonic())
print(json.dumps(times), flush=True)
"""


def cold_start(order: dict[str, Any], timeout: float) -> dict[str, float]:
    """Starts a process and waits for its first result.

    Args:
        order: `model`, `type` (of the wrapper, or `"arrays"`), `wrapper` (its settings), `arguments` and `options` of
            loading, and `image`, or for arrays `batch` and `shapes`.
        timeout: in seconds.

    Returns:
        Seconds by stage.

    Raises:
        StepError: it failed, or took longer.
    """
    text = json.dumps({**order, "path": import_path()})
    start = monotonic()
    try:
        done = subprocess.run(
            [own_interpreter(), "-c", _PROGRAM, text], check=False, capture_output=True, text=True, timeout=timeout,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise StepError(f"took longer than {timeout:g} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = done.stderr.strip().splitlines()
        raise StepError(said[-1][:300] if said else f"the process ended with code {done.returncode}")
    times = [start, *json.loads(lines[-1])]
    return {name: b - a for name, a, b in zip(STAGES, times, times[1:], strict=False)}
