"""The registry of backends, and `load()`.

Backends are registered by strings, and imported on request. Another package registers its backend by an entry point in
the group `infersdk.backends`::

    [project.entry-points."infersdk.backends"]
    ncnn = "infersdk_ncnn:NcnnInfer"
"""

from __future__ import annotations

import functools
import importlib
import operator
import os
import warnings
from collections.abc import Collection, Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.device import Device
from ..core.model_source import ModelLike, ModelSource, is_configuration
from ..core.target import Target, check_precision
from ..core.text import printable
from ..errors import BackendNotFoundError, BackendUnavailableError, ConfigError, InputError, nearest
from ..infer import Infer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..custom_ops import CustomOp

__all__ = ["backend_class", "list_backends", "load"]


AUTO = "auto"  # the backend that `load()` chooses by measuring


class _Backend(NamedTuple):
    target: str  # "module:Class"
    hint: str  # the command that installs its packages


_BUILT_IN = {
    "onnxruntime": _Backend("infersdk.backends.onnxruntime:OnnxRuntimeInfer", 'pip install "infersdk[onnxruntime]"'),
    "openvino": _Backend("infersdk.backends.openvino:OpenVinoInfer", 'pip install "infersdk[openvino]"'),
    "tensorrt": _Backend("infersdk.backends.tensorrt:TensorRtInfer", 'pip install "infersdk[tensorrt]"'),
    "tensorrt-rtx": _Backend("infersdk.backends.tensorrt:TensorRtRtxInfer", 'pip install "infersdk[tensorrt-rtx]"'),
}


def _registered() -> dict[str, _Backend]:
    """The built-in backends and those of installed packages, which cannot replace built-in names or be `"auto"`."""
    from importlib.metadata import entry_points  # it imports email and socket: a sixth of the time of an import

    result = {
        point.name: _Backend(point.value, f"pip install --upgrade {point.dist.name if point.dist else point.value}")
        for point in entry_points(group="infersdk.backends")
        if point.name != AUTO
    }
    return result | _BUILT_IN


def list_backends() -> list[str]:
    """The names of all backends, also of those whose runtimes are not installed."""
    return sorted(_registered())


def install_hint(name: str) -> str:
    """The command that installs the packages of a backend."""
    return _known(name).hint


def check_backend(name: str) -> None:
    """Raises BackendNotFoundError if no backend has this name. Its packages may be missing."""
    _known(name)


def _known(name: str) -> _Backend:
    if not isinstance(name, str):
        raise ConfigError(f"backend is a name, not {name!r}")
    if name in _BUILT_IN:  # searching the installed packages takes milliseconds
        return _BUILT_IN[name]
    known = _registered()
    if name in known:
        return known[name]
    raise BackendNotFoundError(f"no backend {name!r}; there are {', '.join(sorted(known))}{nearest(str(name), known)}")


def backend_class(name: str) -> type[Infer]:
    """Imports and returns the class of a backend.

    Raises:
        BackendNotFoundError: no such name.
        BackendUnavailableError: its package is missing, or fails to import.
    """
    target, hint = _known(name)
    try:
        result = _imported(target)
    except ModuleNotFoundError as error:
        raise BackendUnavailableError(f"backend {name!r} needs {error.name}, which is not installed: {hint}") from error
    except Exception as error:  # a vendor's package may raise anything
        if isinstance(error.__cause__, KeyboardInterrupt):  # pybind11 makes an ImportError of it
            raise error.__cause__ from None
        raise BackendUnavailableError(
            f"backend {name!r} is installed but fails to import: {type(error).__name__}: {error}. "
            f"Try to reinstall it: {hint}"
        ) from error
    if not (isinstance(result, type) and issubclass(result, Infer)):
        raise BackendUnavailableError(f"backend {name!r}: {target} is not a subclass of infersdk.Infer")
    return result


#: Fields of a configuration for `load()`; the others are for the wrapper.
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
    """Loads a model on a backend. Strict: it uses the requested backend, device and precision, or raises an error.

    Args:
        model: the path of a model file, its bytes, or a binary file that is open for reading. Every backend reads ONNX,
            and some read other formats. Other formats and a `torch.nn.Module` are converted to ONNX if possible
            (`infersdk.importers`), checked, and kept in the cache. Or the path of a configuration of one model (.toml,
            .yaml, .json: see `infersdk.config`), as `infersdk tune` writes it; the other arguments override it.
        backend: a name out of `infersdk.list_backends()`; None is `"onnxruntime"`. `"auto"` measures each backend and
            device for 2 seconds and takes the fastest one with the results of ONNX Runtime on the processor. With it,
            `device` limits the candidates, and `selection` of the result has the times and reasons.
        device: `"cpu"`, `"cuda:0"`, or another device of the backend; None is the backend's default.
        precision: `"fp32"`, `"fp16"`, `"bf16"` or `"int8"`; None runs the model as written.
        max_batch: the maximum batch size; its memory is reserved now.
        while_building: another backend, such as `"onnxruntime"`, `"onnxruntime@cpu"` or `"openvino/bf16"`, that serves
            while a thread loads this one: see `infersdk.loading.hot_swap`.
        custom_ops: the custom operators of the model, as classes (`infersdk.custom_ops.CustomOp`). Operators of
            infersdk and of installed packages (entry points in the group `infersdk.custom_ops`) need not be given.
        cut_custom_ops: whether to cut the model at its custom operators even if the backend can run them.
        external_data: for a model as bytes or an open file: the folder of its external weights. Without it no other
            file is read. For an OpenVINO IR it is the .bin file.
        convert: arguments of `infersdk.importers.convert()` for a model that is converted: `{"shapes": [(1, 3, 224,
            224)]}` for a model without shapes.
        **options: the options of the backend, checked against its `Options`.

    A model as bytes or an open file stays in memory: data made from it is written only to the folder of an option
    (`cache_dir`).

    A model that `infersdk quantize` made for another backend loads with a RuntimeWarning about the consequences.

    Raises:
        BackendError, ModelError, CustomOpError, ConfigError, OutOfMemoryError: see `infersdk.errors`.
    """
    given: dict[str, Any] = {
        "device": device, "precision": precision, "max_batch": max_batch, "custom_ops": custom_ops,
        "cut_custom_ops": cut_custom_ops,
    }  # fmt: skip
    if is_configuration(model):
        given |= {
            "backend": backend, "while_building": while_building, "external_data": external_data, "convert": convert,
            "cut_custom_ops": cut_custom_ops or None,  # False is the default, which the file goes before
        }  # fmt: skip
        given = {key: value for key, value in given.items() if value is not None}
        name, table = _configured(model)
        try:
            return load_table(name, table, {**given, **options})
        except ConfigError as error:
            raise ConfigError(f"{str(model)!r}: {error}") from None
    if backend == AUTO:
        check_precision(precision)
        given |= options
        source = _readable(backend_class("onnxruntime"), model, external_data, convert)
        selection = _imported(_SELECTOR)(source, load, given)
        target = Target.parse(selection.target)
        given |= {"device": target.device, "while_building": while_building}
        infer = load(source, target.backend, **given)  # its error is raised: no other one is tried
        infer.selection = selection
        return infer
    backend = "onnxruntime" if backend is None else backend
    kind = backend_class(backend)
    check_precision(precision)
    max_batch = checked_max_batch(max_batch)
    from ..config import convert as checked_options
    from ..core.memory_limit import check_option

    target_device = Device.parse(device if device is not None else kind.declaration.default_device)
    check_option(options, kind.declaration.options, backend)
    own = checked_options(options, kind.declaration.options, f"options of backend {backend!r}")
    source = _readable(kind, model, external_data, convert)
    make: Callable[..., Infer] = kind
    if custom_ops or source.foreign_domains:
        from ..custom_ops.loading import with_custom_ops

        make = with_custom_ops(kind, source, target_device, custom_ops, cut=cut_custom_ops)
    start = functools.partial(make, source, device=target_device, precision=precision, max_batch=max_batch)
    if while_building is None:
        infer = start(options=own)
        if "infersdk.quantization" in infer.metadata:
            _warn_of_target(infer)
        return infer
    from .hot_swap import HotSwap, check_device

    check_device(kind, backend, target_device)
    stand_in = Target.parse(while_building)
    # Both backends take the same batches, so that the limit of requests does not change.
    largest = (
        max_batch if max_batch is not None or getattr(own, "profiles", None) else kind.declaration.default_max_batch
    )
    serve = functools.partial(load, source, **stand_in.arguments, max_batch=largest, custom_ops=custom_ops)
    return HotSwap(source, kind, start, serve, device=target_device, options=own)


def checked_max_batch(value: int | None) -> int | None:
    """The argument `max_batch` as an int. Raises ConfigError unless it is a whole number from 1, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ConfigError(f"max_batch is a whole number from 1, not {value!r}")
    return int(value)


def option_names(backend: str) -> tuple[str, ...]:
    """The options of a backend by name; none for `"auto"`, which may choose any.

    Raises:
        BackendNotFoundError, BackendUnavailableError: as `backend_class()`.
    """
    return () if backend == AUTO else backend_class(backend).declaration.options.__struct_fields__


def _warn_of_target(infer: Infer) -> None:
    """Warns about a model that was quantised for another backend."""
    from ..graph.quantization import QuantizationRecord

    record = QuantizationRecord.read(infer.metadata)
    text = record.warning(infer.backend) if record is not None else None
    if text is not None:
        warnings.warn(f"{printable(infer.model.name)}: {text}", RuntimeWarning, stacklevel=3)


#: Functions that load models themselves. They are known by strings alone, as backends are.
_CONVERTER = "infersdk.importers.loading:converted_source"
_SELECTOR = "infersdk.loading.auto:select"


def _imported(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return operator.attrgetter(attribute)(importlib.import_module(module))


def is_torch_module(model: object) -> bool:
    """Whether it is a `torch.nn.Module`; PyTorch is not imported."""
    return any(one.__module__ == "torch.nn.modules.module" and one.__name__ == "Module" for one in type(model).__mro__)


def _readable(
    kind: type[Infer],
    model: ModelLike | Any,
    external_data: str | os.PathLike[str] | None,
    arguments: Mapping[str, Any] | None,
) -> ModelSource:
    """The source of a model, converted to ONNX if the backend does not read its format."""
    if arguments is not None and not isinstance(arguments, Mapping):
        example = {"shapes": [(1, 3, 224, 224)]}
        raise ConfigError(f"convert is a mapping of arguments, such as {example}, not {arguments!r}")
    is_module = is_torch_module(model)
    if is_module and external_data is not None:
        raise ConfigError("external_data is for a model in memory with weights in a file; a module has its own")
    source = None if is_module else ModelSource.of(model, external_data)
    result = source.format if source is not None else None
    readable = kind.declaration.formats is None or result is None or result.key in kind.declaration.formats
    if source is not None and (readable or not (result and result.importer)):
        if arguments is not None:
            raise ConfigError(
                f"convert= is for a model that is converted; backend {kind.backend!r} reads {source} itself"
            )
        return source
    made: ModelSource = _imported(_CONVERTER)(source or model, arguments or {})
    return made


def _configured(path: str | os.PathLike[str]) -> tuple[str, dict[str, Any]]:
    """The name and the table of the one model of a configuration."""
    from ..config import model_tables, read

    configuration = read(path)
    tables = model_tables(configuration) if configuration.get("models") else {}
    if len(tables) != 1:
        count = f"{len(tables)} of them ({', '.join(tables)})" if tables else "none"
        raise ConfigError(
            f"{str(path)!r}: load() takes a configuration of one model, [models.detector] say, and it has {count}; "
            "infersdk.models.create() makes the wrappers of all"
        )
    ((name, table),) = tables.items()
    if not isinstance(table, dict) or not isinstance(table.get("path"), str):
        raise ConfigError(f"{str(path)!r}: models.{name} has no path of a model file")
    if is_configuration(table["path"]):
        raise ConfigError(f"{str(path)!r}: models.{name}: path {table['path']!r} is a configuration, not a model file")
    return name, table


def load_table(name: str, table: Mapping[str, Any], given: Mapping[str, Any]) -> Infer:
    """Loads the network of a table of a configuration. The settings of a wrapper and its pipeline are ignored.

    Args:
        given: arguments of `load()` that override those of the table.
    """
    own = {key: value for key, value in table.items() if key in _FIELDS}
    known = (*_FIELDS, "type", "pipeline")
    rest = sorted(table.keys() - set(known))
    if rest and table.get("type", "network") == "network":
        raise ConfigError(
            f"models.{name} has no field {rest[0]!r}; there are {', '.join(known)}{nearest(rest[0], known)}"
        )
    options = own.pop("options", {})
    check_options(options, f"models.{name}.options", ("model", "custom_ops", *_FIELDS))
    model = own.pop("path", None)
    if "backend" in given and given["backend"] != own.get("backend", "onnxruntime"):
        options = {}  # they are those of another backend
    try:
        return load(model, **{**own, **options, **given})
    except (ConfigError, InputError, TypeError) as error:
        raise ConfigError(f"models.{name}: {error}") from None


def check_options(options: Any, what: str, arguments: Collection[str], given: Collection[str] = ()) -> None:
    """Checks a table of options of a backend.

    Args:
        what: it, for messages.
        arguments: the names of arguments that are not given as options.
        given: the names of options that are given outside of it.

    Raises:
        ConfigError: it is no table, or has one of these names.
    """
    if not isinstance(options, Mapping):
        raise ConfigError(f"{what} is a table, not {options!r}")
    if misplaced := sorted(options.keys() & set(arguments)):
        raise ConfigError(f"{what}: {misplaced[0]!r} is not an option of the backend; move it out of options")
    if twice := sorted(options.keys() & set(given)):
        raise ConfigError(f"{what}: {twice[0]!r} is also given outside of options; give it once")
