"""What is to be measured: combinations, and how long and how often."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from ..errors import ConfigError
from ..precision import check_precision
from ..registry import backends
from ..target import Target

if TYPE_CHECKING:
    import os

__all__ = ["BenchSettings", "Combination", "combine"]

Above0 = Annotated[float, msgspec.Meta(gt=0)]
From1 = Annotated[int, msgspec.Meta(ge=1)]


class Combination(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a report: a model, and how it is run.

    Attributes:
        model: the path of the file.
        backend, device, precision: as `infersdk.load()` takes them; a precision of None is the model's own.
        batch: images (or rows) in a run.
        options: the backend's own. Those that it does not have are an error.
        threads: for each backend that has the option; 0 is its own choice.
    """

    model: str
    backend: str = "onnxruntime"
    device: str | None = None
    precision: str | None = None
    batch: From1 = 1
    options: dict[str, Any] = {}
    threads: Annotated[int, msgspec.Meta(ge=0)] = 0

    @property
    def side(self) -> str:
        """Backend, device and precision as a person writes them."""
        return str(Target(self.backend, self.device, self.precision))

    @property
    def name(self) -> str:
        """All of it in a line. The same in two reports for what is to be compared, wherever the files lie."""
        settings = {**({"threads": self.threads} if self.threads else {}), **self.options}
        told = "".join(f" {key}={value}" for key, value in sorted(settings.items()))
        return f"{Path(self.model).name} {self.side} batch {self.batch}{told}"


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How it is measured.

    Attributes:
        type: the wrapper, a name of `models.TYPES`; `"arrays"` measures the network alone; `"auto"` takes the wrapper
            that fits, and arrays where none does.
        time: seconds for each way to run (engine alone, one call after another, pipelined) of a combination, over all
            rounds.
        rounds: so often all combinations take their turn, in an order that changes.
        warmup: seconds that a warm-up takes at most, if it does not get steady.
        data: a folder of images or arrays; None is the packaged image, or random arrays.
        annotations: boxes in COCO's format for the images of `data`: accuracy is mAP.
        labels: a file of labels for the images of `data`, or `"folder"` for those that the folder itself tells:
            accuracy is top-1.
        names: class names, or a file of them.
        preset, resize: of a classifier.
        shapes: by input name, for inputs with other free axes than the batch.
        seed: of random inputs, and of the order of turns.
        from_files: images are read from their files each time, instead of once before.
        timeout: seconds that one step of one combination (loading, a round) may take.
        ways: of `"engine"`, `"engine_parallel"`, `"single"` and `"pipelined"` those that are run; None is all that can.
        max_samples: images or arrays of `data` that are run for speed and for agreement.
    """

    type: str = "auto"
    time: Above0 = 5.0
    rounds: From1 = 5
    warmup: Above0 = 10.0
    data: str | None = None
    annotations: str | None = None
    labels: str | None = None
    names: str | list[str] | None = None
    preset: str | None = None
    resize: int | None = None
    shapes: dict[str, list[int]] = {}
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    from_files: bool = False
    timeout: Above0 = 900.0
    ways: list[Literal["engine", "engine_parallel", "single", "pipelined"]] | None = None
    max_samples: From1 = 16


def combine(
    models: Sequence[str | os.PathLike[str]],
    sides: Sequence[str] = ("onnxruntime",),
    *,
    precisions: Sequence[str | None] = (None,),
    batches: Sequence[int] = (1,),
    options: dict[str, Any] | None = None,
    threads: int = 0,
) -> list[Combination]:
    """Every model on every backend in every precision with every batch, each once.

    Args:
        sides: backends as `"name"`, `"name@device"`, `"name/precision"` or both.
        precisions: for the backends that name none.

    Raises:
        ConfigError: a name that is not understood, or a number that is none.
    """
    for what, given in (("models", models), ("backends", sides), ("precisions", precisions), ("batches", batches)):
        if not given:
            raise ConfigError(f"there are no {what} to measure")
    for batch in batches:
        if batch < 1:
            raise ConfigError(f"a batch is a whole number from 1, not {batch}")
    for precision in precisions:
        check_precision(precision)
    targets = [Target.parse(side) for side in sides]
    found = [
        Combination(
            model=str(model), backend=target.backend, device=target.device, precision=precision, batch=batch,
            options=dict(options or {}), threads=threads,
        )
        for model in models
        for target in targets
        for precision in ((target.precision,) if target.precision else precisions)
        for batch in batches
    ]  # fmt: skip
    return list({combination.name + combination.model: combination for combination in found}.values())


def usable_backends() -> list[str]:
    """Those that are installed and find a device here, `"onnxruntime"` first; one that runs on a processor by default
    and can use the first GPU too is there twice."""
    from ..errors import BackendError
    from ..registry import backend_class
    from ..stream import device_count

    gpu = device_count() > 0
    found = []
    for name in sorted(backends(), key=lambda name: (name != "onnxruntime", name)):
        try:
            kind = backend_class(name)
            found += sides_of(name, kind.probe().devices, kind.default_device, gpu=gpu)
        except BackendError:
            continue
        except Exception:  # a vendor's runtime may fail in any way
            continue
    return found or ["onnxruntime"]


def sides_of(name: str, devices: Sequence[str], default: str, *, gpu: bool) -> list[str]:
    """Where a backend is to be measured: where it runs by default, and on an NVIDIA GPU.

    Args:
        devices: those that it says it has. A runtime may say "cuda" for being made for it.
        gpu: whether there is one.
    """
    if not devices:
        return []
    again = gpu and "cuda" in devices and not default.startswith("cuda")
    return [name, f"{name}@cuda:0"] if again else [name]
