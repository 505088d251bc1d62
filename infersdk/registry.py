"""Which backends there are, and `load()`.

Backends are known by strings alone, and imported when one is asked for. A package from outside registers its own by an
entry point in the group `infersdk.backends`::

    [project.entry-points."infersdk.backends"]
    ncnn = "infersdk_ncnn:NcnnInfer"
"""

from __future__ import annotations

import importlib
import operator
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from ._text import printable
from .device import Device
from .errors import BackendNotFoundError, BackendUnavailableError, ConfigError, nearest
from .graph.domains import foreign_domains
from .infer import Infer
from .model_source import ModelLike, ModelSource
from .precision import check_precision
from .target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .custom_ops import CustomOp

__all__ = ["backend_class", "backends", "load"]


class _Backend(NamedTuple):
    target: str  # "module:Class"
    hint: str  # how to get what it needs


_BUILT_IN = {
    "onnxruntime": _Backend("infersdk.backends.onnxruntime:OnnxRuntimeInfer", 'pip install "infersdk[onnxruntime]"'),
    "openvino": _Backend("infersdk.backends.openvino:OpenVinoInfer", 'pip install "infersdk[openvino]"'),
    "tensorrt": _Backend("infersdk.backends.tensorrt:TensorRtInfer", 'pip install "infersdk[tensorrt]"'),
    "tensorrt-rtx": _Backend("infersdk.backends.tensorrt:TensorRtRtxInfer", 'pip install "infersdk[tensorrt-rtx]"'),
}


def _registered() -> dict[str, _Backend]:
    """The built-in backends and those that installed packages register; a built-in name cannot be taken over."""
    from importlib.metadata import entry_points  # with all of email and socket in tow: a sixth of the time of an import

    result = {
        point.name: _Backend(point.value, f"pip install --upgrade {point.dist.name if point.dist else point.value}")
        for point in entry_points(group="infersdk.backends")
    }
    return result | _BUILT_IN


def backends() -> list[str]:
    """The names that `load(backend=...)` knows, whether their runtimes are installed or not."""
    return sorted(_registered())


def install_hint(name: str) -> str:
    """The command that installs what a backend needs."""
    return _known(name).hint


def _known(name: str) -> _Backend:
    if not isinstance(name, str):
        raise ConfigError(f"backend is a name, not {name!r}")
    if name in _BUILT_IN:  # at once: looking through all installed packages takes milliseconds
        return _BUILT_IN[name]
    known = _registered()
    if name in known:
        return known[name]
    raise BackendNotFoundError(f"no backend {name!r}; there are {', '.join(sorted(known))}{nearest(str(name), known)}")


def backend_class(name: str) -> type[Infer]:
    """The class behind a backend's name, imported now.

    Raises:
        BackendNotFoundError: no such name.
        BackendUnavailableError: its package is missing, or fails to import.
    """
    target, hint = _known(name)
    module, _, attribute = target.partition(":")
    try:
        result = operator.attrgetter(attribute)(importlib.import_module(module))
    except ModuleNotFoundError as error:
        raise BackendUnavailableError(f"backend {name!r} needs {error.name}, which is not installed: {hint}") from error
    except Exception as error:  # whatever a vendor's package does on import
        raise BackendUnavailableError(
            f"backend {name!r} is installed but fails to import: {type(error).__name__}: {error}. "
            f"Try to reinstall it: {hint}"
        ) from error
    if not (isinstance(result, type) and issubclass(result, Infer)):
        raise BackendUnavailableError(f"backend {name!r}: {target} is not a subclass of infersdk.Infer")
    return result


#: What ends like this is a configuration that names a model, and no model.
_CONFIGURATIONS = (".toml", ".yaml", ".yml", ".json")
#: Fields of a configuration that are `load()`'s; the others are the wrapper's that `type` names.
_FIELDS = ("path", "backend", "device", "precision", "max_batch", "while_building", "options")


def load(
    model: ModelLike,
    backend: str | None = None,
    *,
    device: str | Device | None = None,
    precision: str | None = None,
    max_batch: int | None = None,
    while_building: str | None = None,
    custom_ops: Sequence[type[CustomOp]] | None = None,
    cut_custom_ops: bool = False,
    external_data: str | os.PathLike[str] | None = None,
    convert: Mapping[str, Any] | None = None,
    **options: Any,
) -> Infer:
    """Loads a model on a backend. Strict: the backend, device and precision asked for, or an error.

    Args:
        model: the path of a model file, its bytes, or a binary file that is open for reading. Every backend reads ONNX,
            and some read other formats. What the backend does not read is converted to ONNX where that can be done
            (`infersdk.importers`), checked, and kept in the cache. A `torch.nn.Module` is converted, too. Or the
            path of a configuration of one model (.toml, .yaml, .json: see `infersdk.config`), as `infersdk tune` writes
            it; the other arguments override what it says.
        backend: a name out of `infersdk.list_backends()`; None is `"onnxruntime"`.
        device: `"cpu"`, `"cuda:0"`, or another one that the backend has; None is the backend's default.
        precision: `"fp32"`, `"fp16"`, `"bf16"` or `"int8"`; None runs the model as it was written.
        max_batch: the largest batch that will be run; memory for it is reserved now.
        while_building: another backend, such as `"onnxruntime"`, `"onnxruntime@cpu"` or `"openvino/bf16"`, that serves
            until this one is loaded, on a thread of its own: see `infersdk.hot_swap`.
        custom_ops: the operators of one's own that the model uses, as classes (`infersdk.custom_ops.CustomOp`). Those
            of installed packages (entry points in the group `infersdk.custom_ops`) and of infersdk itself need not be
            given.
        cut_custom_ops: whether to cut the model at its custom operators where the backend could run them, too.
        external_data: for a model that is given as bytes or as an open file: the folder of the weights that it keeps
            in other files. Without it no other file is read. For an OpenVINO IR it is the .bin file.
        convert: arguments of `infersdk.importers.convert()` for a model that is converted: `{"shapes": [(1, 3, 224,
        224)]}`
            for one that does not say its shapes.
        **options: the backend's own, checked against its `Options`.

    A model that is given as bytes or as an open file stays in memory: what is made from it is written only to a folder
    that an option names (`cache_dir`).

    A model that `infersdk quantize` made for another backend loads with a RuntimeWarning that says what that costs.

    Raises:
        BackendError, ModelError, CustomOpError, ConfigError: see `infersdk.errors`.
    """
    if _is_configuration(model):
        given = {
            "backend": backend, "device": device, "precision": precision, "max_batch": max_batch,
            "while_building": while_building,
        }  # fmt: skip
        return _load_configured(model, {key: value for key, value in given.items() if value is not None}, options)
    backend = "onnxruntime" if backend is None else backend
    kind = backend_class(backend)
    check_precision(precision)
    if max_batch is not None and (isinstance(max_batch, bool) or not isinstance(max_batch, int) or max_batch < 1):
        raise ConfigError(f"max_batch is a whole number from 1, not {max_batch!r}")
    from .config import convert as checked_options
    from .memory_limit import check_option

    source = _readable(kind, model, external_data, convert)
    target_device = Device.parse(device if device is not None else kind.default_device)
    check_option(options, kind.Options, backend)
    own = checked_options(options, kind.Options, f"options of backend {backend!r}")
    make: Callable[..., Infer] = kind
    if custom_ops or foreign_domains(source):
        from .custom_ops.loading import with_custom_ops

        make = with_custom_ops(kind, source, target_device, custom_ops, cut=cut_custom_ops)
    if while_building is None:
        infer = make(source, device=target_device, precision=precision, max_batch=max_batch, options=own)
        if "infersdk.quantization" in infer.metadata:
            _warn_of_target(infer)
        return infer
    from .hot_swap import HotSwap, check_device

    check_device(kind, backend, target_device)
    stand_in = Target.parse(while_building)
    # Both take the same batches: what a request may be does not change with who serves it.
    largest = max_batch if max_batch is not None or getattr(own, "profiles", None) else kind.default_max_batch
    return HotSwap(
        source,
        kind,
        lambda: load(source, **stand_in.arguments, max_batch=largest, custom_ops=custom_ops),
        device=target_device,
        precision=precision,
        max_batch=max_batch,
        options=own,
        make=make,
    )


def _warn_of_target(infer: Infer) -> None:
    """Warns of a model that was quantised for another backend."""
    from .graph.quantization import QuantizationRecord

    record = QuantizationRecord.read(infer.metadata)
    text = record.warning(infer.backend) if record is not None else None
    if text is not None:
        warnings.warn(f"{printable(infer.model.name)}: {text}", RuntimeWarning, stacklevel=3)


#: What converts a model to ONNX. It is known by a string alone, as backends are: it loads models itself, to check them.
_CONVERTER = "infersdk.importers.loading:converted_source"


def _readable(
    kind: type[Infer],
    model: ModelLike | Any,
    external_data: str | os.PathLike[str] | None,
    arguments: Mapping[str, Any] | None,
) -> ModelSource:
    """The source of a model, converted to ONNX if it is of a format that the backend does not read.

    Raises:
        ConfigError: arguments of a conversion are given, and there is nothing to convert.
    """
    is_module = any(base.__module__ == "torch.nn.modules.module" for base in type(model).__mro__)
    source = None if is_module else ModelSource.of(model, external_data)
    result = source.format if source is not None else None
    readable = kind.formats is None or result is None or result.key in kind.formats
    if source is not None and (readable or not (result and result.importer)):
        if arguments is not None:
            raise ConfigError(
                f"convert= is for a model that is converted; backend {kind.backend!r} reads {source} itself"
            )
        return source
    module, _, attribute = _CONVERTER.partition(":")
    made: ModelSource = getattr(importlib.import_module(module), attribute)(source or model, arguments or {})
    return made


def _is_configuration(model: ModelLike) -> TypeGuard[str | os.PathLike[str]]:
    if not isinstance(model, (str, os.PathLike)) or isinstance(model, ModelSource):
        return False
    if not str(model).lower().endswith(_CONFIGURATIONS):
        return False
    path = Path(model)
    return not os.path.isfile(path) or ModelSource.of(path).format is None  # PaddlePaddle 3 keeps models in .json


def named_model(model: ModelLike) -> ModelLike:
    """A model; or, of a configuration of one model, the file that it names.

    Raises:
        ConfigError: a configuration that does not have exactly one model with a path.
    """
    return _configured(model)[1]["path"] if _is_configuration(model) else model


def _configured(path: str | os.PathLike[str]) -> tuple[str, dict[str, Any]]:
    """The name and the table of the one model of a configuration."""
    from .config import read

    tables = read(path).get("models")
    if not isinstance(tables, dict) or len(tables) != 1:
        count = f"{len(tables)} of them ({', '.join(tables)})" if isinstance(tables, dict) and tables else "none"
        raise ConfigError(
            f"{str(path)!r}: load() takes a configuration of one model, [models.detector] say, and it has {count}; "
            "infersdk.models.create() makes the wrappers of all"
        )
    ((name, table),) = tables.items()
    if not isinstance(table, dict) or not isinstance(table.get("path"), str):
        raise ConfigError(f"{str(path)!r}: models.{name} has no path of a model file")
    if table["path"].lower().endswith(_CONFIGURATIONS):
        raise ConfigError(f"{str(path)!r}: models.{name}: path {table['path']!r} is no model file")
    return name, table


def _load_configured(path: str | os.PathLike[str], given: dict[str, Any], options: dict[str, Any]) -> Infer:
    """The model of a configuration that has one. The settings of its wrapper and pipeline are passed over."""
    name, table = _configured(path)
    own = {key: value for key, value in table.items() if key in _FIELDS}
    rest = sorted(table.keys() - {*_FIELDS, "type", "pipeline"})
    if rest and "type" not in table:
        hint = nearest(rest[0], _FIELDS)
        raise ConfigError(
            f"{str(path)!r}: models.{name} has no field {rest[0]!r}; there are {', '.join(_FIELDS)}{hint}"
        )
    inner = own.pop("options", {})
    if not isinstance(inner, dict):
        raise ConfigError(f"{str(path)!r}: models.{name}.options is a table, not {inner!r}")
    model = own.pop("path")
    if "backend" in given and given["backend"] != own.get("backend", "onnxruntime"):
        inner = {}  # options are of the backend that is named beside them
    try:
        return load(model, **{**own, **given}, **{**inner, **options})
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{str(path)!r}: models.{name}: {error}") from None
