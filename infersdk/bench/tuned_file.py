"""The configuration that `infersdk tune` writes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import is_file_of_names
from ..loading.registry import backend_class

if TYPE_CHECKING:
    from .plan import BenchSettings
    from .tune import Tuned

__all__ = ["tuned_toml"]


def tuned_toml(found: Tuned, settings: BenchSettings, output: str | os.PathLike[str]) -> str:
    """The configuration of the winner, for `infersdk.load()` and, with a wrapper, `infersdk.models.create()`.

    Paths are relative to the folder of `output`.
    """
    row = found.best
    what, ran = row.combination, row.ran or {}
    folder, model = Path(output).resolve().parent, Path(what.model).resolve()
    table: dict[str, Any] = {"path": os.path.relpath(model, folder), "backend": what.target.backend}
    kind = ran.get("kind")
    if kind not in (None, "arrays"):
        table = {"type": kind, **table, **settings.wrapper}
        if isinstance(names := table.get("names"), os.PathLike) or is_file_of_names(names):
            table["names"] = os.path.relpath(Path(names).resolve(), folder)
    table |= {"device": what.target.device, "precision": what.target.precision, "max_batch": what.batch}
    options = what.settings
    if not backend_class(what.target.backend).declaration.options.has("threads"):
        options.pop("threads", None)
    if options:
        table["options"] = options
    table["pipeline"] = {"max_batch": what.batch}
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in model.stem) or "model"
    figures = [f"p50 {row.latency.value:.3g} ms"] if row.latency else []
    figures += [f"{row.best_throughput.value:.4g} images/s"] if row.best_throughput else []
    machine = found.report.machine
    head = [
        f"infersdk tune, for {found.objective}: {', '.join(figures)}, batch {what.batch}",
        f"on {machine['processor']}, {machine['cores']} cores" + "".join(f", {gpu}" for gpu in machine["gpus"]),
        f"{ran.get('backend')} {ran.get('version')}, {ran.get('precision')} on {ran.get('device')}",
        f"accuracy: {found.accuracy}",
        f"{len(found.tried)} candidates ran in {found.seconds:.0f} s; {len(found.failed)} cannot run here, "
        f"{len(found.dropped)} are not accurate enough or not measured, {len(found.untried)} were not reached",
    ]
    return "".join(f"# {line}\n" for line in head) + "\n" + _toml(name, table)


def _toml(name: str, table: dict[str, Any]) -> str:
    """Encodes a table of plain values, and of tables of plain values."""
    parts = {f"models.{name}": {key: value for key, value in table.items() if not isinstance(value, dict)}}
    parts |= {f"models.{name}.{key}": inner for key, inner in table.items() if isinstance(inner, dict)}
    return "\n".join(
        "".join([f"[{title}]\n", *(f"{key} = {_value(value)}\n" for key, value in part.items() if value is not None)])
        for title, part in parts.items()
    )


def _value(value: Any) -> str:
    """JSON's strings, numbers, bools and arrays of them are TOML's, too, except for surrogate pairs and U+007F."""
    return json.dumps(value, ensure_ascii=False, default=os.fspath).replace("\x7f", "\\u007f")
