"""The candidates of `infersdk tune`: combinations of settings, the most promising first."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Literal

from ..core.processors import available_processors
from ..core.target import Target
from ..errors import BackendError, ConfigError
from ..loading.registry import backend_class
from .plan import Combination, check_lists

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ..core.backend import BackendOptions
    from ..infer import Infer

__all__ = ["candidates", "check_objective"]


def candidates(
    models: Sequence[str | os.PathLike[str]],
    targets: Sequence[str | Target],
    *,
    objective: Literal["latency", "throughput"],
    precisions: Sequence[str | None] = (None, "bf16", "fp16"),
    batches: Sequence[int] | None = None,
    threads: Sequence[int] | None = None,
) -> list[Combination]:
    """The combinations to try, the most promising first: those nearest to the defaults, and with a GPU those on it.

    Args:
        targets: backends, as `Target.parse()` reads them; a precision in a target is the only one that is tried there.
        precisions: None is each model's own. Unsupported ones fail during the search.
        batches: None is 1 for latency, and 1 to 32 for throughput.
        threads: on a processor; None is the backend's choice, all cores, and half of them.

    Raises:
        ConfigError: the objective or a precision is unknown, an argument is not a list or is empty, or a batch is below
            1.
        BackendError: a backend does not exist, or is not installed.
    """
    check_objective(objective)
    cores = available_processors()
    thread_counts = list(dict.fromkeys(threads or (0, cores, max(cores // 2, 1))))
    sizes = list(batches or ((1,) if objective == "latency" else (1, 2, 4, 8, 16, 32)))
    check_lists(models, targets, precisions, sizes)
    resolved = [_resolve(Target.parse(target)) for target in targets]
    has_gpu = not all(on_processor for *_, on_processor in resolved)
    ranked: list[tuple[int, bool, int, Combination]] = []
    for target, kind, on_processor in resolved:
        for precision in (target.precision,) if target.precision else precisions:
            choices = _options(kind.declaration.options, thread_counts, objective, precision, on_processor=on_processor)
            for (options, distance), batch, model in itertools.product(choices, sizes, models):
                what = Combination(
                    model=str(model), target=Target(target.backend, target.device, precision), batch=batch,
                    options=options,
                )  # fmt: skip
                cost = distance + (precision is not None) + (batch > 8) + (on_processor and has_gpu)
                ranked.append((cost, on_processor, distance, what))
    ranked.sort(key=lambda entry: entry[:3])
    return [what for *_, what in ranked]


def check_objective(objective: str) -> None:
    """Raises ConfigError for an unknown objective."""
    if objective not in ("latency", "throughput"):
        raise ConfigError(f'the objective is "latency" or "throughput", not {objective!r}')


def _resolve(target: Target) -> tuple[Target, type[Infer], bool]:
    """A target with its backend, and whether it runs on a processor."""
    try:
        kind = backend_class(target.backend)
    except BackendError as error:
        raise type(error)(f"{error}; leave it out, or install it") from None
    return target, kind, (target.device or kind.declaration.default_device).startswith("cpu")


def _options(
    kind: type[BackendOptions], threads: Sequence[int], objective: str, precision: str | None, *, on_processor: bool
) -> list[tuple[dict[str, Any], int]]:
    """Options of a backend, each with its distance from the defaults."""
    result: list[tuple[dict[str, Any], int]] = []
    for i, number in enumerate(threads if on_processor and kind.has("threads") else (0,)):
        own = {"threads": number} if number else {}
        result.append((own, i))
        if objective == "throughput" and kind.has("performance_hint"):
            result.append(({**own, "performance_hint": "throughput"}, i))
        if objective == "throughput" and kind.has("streams"):
            limit = number or max(threads)
            result += [({**own, "streams": streams}, i + 1) for streams in (2, 4) if streams <= limit]
    if kind.has("cuda_graph") and not on_processor:
        result += [({**own, "cuda_graph": True}, distance + 1) for own, distance in list(result)]
    if kind.has("half_io") and precision == "fp16":
        result += [({**own, "half_io": True}, distance + 1) for own, distance in list(result)]
    return result
