"""PyTorch: TorchScript files and exported programs in a separate process, and modules in this one.

Python never unpickles a file. Files are checked before PyTorch loads them; those that access files or contain libraries
are rejected.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import logging
import re
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, ModelFormatError, UnsupportedModelError
from .processes import opened_archive, read_result, refusals, worker
from .workers import torch_export

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from ..core.model_source import ModelSource
    from .conversion import Imported, Request

__all__ = ["import_checkpoint", "import_module", "import_program", "import_script"]

#: TorchScript operators that access files, processes or libraries.
_REACHING = re.compile(
    r"\b(?:torch\s*\.\s*(?:save|load|from_file|classes)\b|ops\s*\.\s*(?!aten\b|prim\b|torchvision\b|quantized\b|prims\b)\w+)"
)
#: The maximum size of code in bytes.
_MOST_CODE = 1 << 26


def import_script(request: Request) -> Imported:
    """The importer of TorchScript files."""
    _check_archive(request.source)
    result = _import(request, "torchscript")
    if not result.notes:  # by the TorchScript exporter
        result.alternative = lambda: _import(request, "torchscript", converted=True)
    return result


def import_program(request: Request) -> Imported:
    """The importer of `torch.export` files (.pt2)."""
    if request.shapes:
        raise ConfigError("an exported program contains its shapes; omit shapes")
    _check_archive(request.source)
    return _import(request, "torch-export")


def import_checkpoint(request: Request) -> Imported:
    """Rejects pickled checkpoints: loading one executes its code, and it contains no graph.

    Raises:
        UnsupportedModelError: always; the message contains the export command for the family of the model.
    """
    source = request.source
    raise UnsupportedModelError(
        f"{str(source)!r} is a pickled checkpoint, which cannot be loaded without executing code in the file, "
        f"and contains no graph. {_export_command(source)}"
    )


#: Names in pickles of model families, and their export commands.
_FAMILIES = (
    (b"models.yolo", "For a YOLOv5 checkpoint, in its repository: python export.py --weights {file} --include onnx"),
    (b"ultralytics", "For a model of Ultralytics: yolo export model={file} format=onnx"),
    (b"yolox", "For a YOLOX checkpoint, in its repository: python tools/export_onnx.py -n yolox-s -c {file}"),
    (b"mmengine", "For a model of OpenMMLab: python tools/deploy.py of mmdeploy"),
    (b"mmdet", "For a model of OpenMMLab: python tools/deploy.py of mmdeploy"),
    (b"detectron2", "For a model of Detectron2: python tools/deploy/export_model.py --format onnx"),
    (b"pytorch_lightning", "For a model of Lightning: model.to_onnx('model.onnx', input_sample)"),
    (b"pytorch-lightning_version", "For a model of Lightning: model.to_onnx('model.onnx', input_sample)"),
    (b"transformers", "For a model of Transformers: optimum-cli export onnx --model FOLDER onnx/"),
)  # fmt: skip
_EXPORT = "Export it where its code is: torch.onnx.export(model, example_inputs, 'model.onnx')"


def _export_command(source: ModelSource) -> str:
    """The export command, found by a search for names in the bytes of the pickle."""
    content = source.read()
    damage = (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError, StopIteration)
    with contextlib.suppress(*damage), zipfile.ZipFile(io.BytesIO(content)) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith("data.pkl"))
        if info.file_size <= _MOST_CODE:
            content = archive.read(info)
    for word, command in _FAMILIES:
        if word in content:
            return command.replace("{file}", str(source))
    return _EXPORT


def _check_archive(source: ModelSource) -> None:
    """Rejects damaged archives, archives that expand too much, libraries, and code that accesses files."""
    with opened_archive(source, "a PyTorch archive") as archive:
        names = archive.namelist()
        libraries = [name for name in names if name.endswith((".so", ".cubin", ".dll")) or "aotinductor" in name]
        if libraries:
            raise UnsupportedModelError(
                f"{str(source)!r} contains compiled code ({libraries[0]}), which is never executed"
            )
        for info in archive.infolist():
            if "/code/" not in f"/{info.filename}" or not info.filename.endswith(".py"):
                continue
            if info.file_size > _MOST_CODE:
                raise ModelFormatError(f"{str(source)!r} has {info.file_size} bytes of code in {info.filename!r}")
            if match := _REACHING.search(archive.read(info).decode("utf-8", "replace")):
                raise UnsupportedModelError(
                    f"{str(source)!r} calls {match[0]} in {info.filename!r}, which accesses external resources"
                )


def _import(request: Request, kind: str, *, converted: bool = False) -> Imported:
    """Converts a file in a worker.

    Args:
        converted: whether to use TS2EPConverter and the dynamo exporter for a script.
    """
    with worker("torch_export", request.python) as work:
        return work.export(request, model=work.model_file(request.source, ".pt"), kind=kind, converted=converted)


# ---- modules ----


def import_module(request: Request) -> Imported:
    """The importer of a `torch.nn.Module`, which is exported in this process."""
    module = request.module
    shapes = request.order["shapes"]
    if not shapes:
        raise ConfigError("a module does not contain the shapes of its inputs; give them: shapes=[(1, 3, 224, 224)]")
    with refusals():
        names, wanted = _module_inputs(module, shapes)
    return export_in_process(module, names, wanted, request)


def _module_inputs(module: Any, shapes: list[dict[str, Any]]) -> tuple[list[str], list[Any]]:
    """The names, shapes and types of the inputs of a module."""
    import inspect

    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return torch_export.script_inputs(module, shapes)
    parameters = inspect.signature(module.forward).parameters.values()
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        names = [one["name"] or f"input{index}" for index, one in enumerate(shapes)]
        return names, torch_export.match_shapes(names, shapes)
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    names = [one.name for one in positional]
    needed = sum(one.default is one.empty for one in positional)
    return torch_export.positional_inputs(names, needed, shapes)


def export_in_process(
    module: torch.nn.Module,
    names: list[str],
    wanted: list[tuple[tuple[int, ...], str]],
    request: Request,
    *,
    prefix: str = "",
    free: list[dict[int, None]] | None = None,
) -> Imported:
    """Exports a module in this process and runs it for the check.

    Args:
        names: the names of its inputs.
        wanted: the shape and element type of each input.
        prefix: the prefix of output names, before a number; empty leaves the names to PyTorch.
        free: the free axes of each input; None fixes all axes. The signature of the module must then be `*inputs`.
    """
    modes = {one: one.training for one in module.modules()}  # parts may have another mode than the whole
    module.eval()
    try:
        with tempfile.TemporaryDirectory(prefix="infersdk-convert-") as name, _quiet(), refusals():
            folder = Path(name)
            example, results = torch_export.run_module(folder, request.order, module, names, wanted)
            outputs = [f"{prefix}{index}" for index in range(len(results))] if prefix else None
            ends = module, example, names, str(folder / "model.onnx"), outputs
            traced = ("the TorchScript exporter", lambda: torch_export.export_traced(*ends))
            notes = torch_export.export_first(
                ("the dynamo exporter", lambda: torch_export.export_dynamo(*ends, free)),
                *([traced] if free is None else []),  # it would fix all axes
            )
            return read_result(folder, f"PyTorch {importlib.metadata.version('torch')}", notes)
    finally:
        for one, training in modes.items():
            one.training = training


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the output and warnings of exporters."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
