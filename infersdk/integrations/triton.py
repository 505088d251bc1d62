"""Models of a configuration as a model repository of Triton Inference Server.

`export()` writes the repository. A network becomes a model of Triton's onnxruntime, openvino or tensorrt backend. A
wrapper becomes a model of its python backend, with preprocessing and postprocessing inside: it loads `infersdk` there,
and answers with the tensors of `infersdk serve`. Both are batched by Triton. This needs the extra `serve`, for the
protobufs of Triton's configurations.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import is_file_of_names
from ..core.files import atomic_write
from ..core.model_source import ModelSource
from ..errors import ConfigError, InputError, OutputError, UnsupportedModelError
from ..importers.loading import source_files
from ..loading import registry
from ..models import create
from ..pipeline.batch_buffer import DEFAULT_BATCH, TensorRequests, has_rows, names_rows
from ..serve.images import ENCODED, PIXELS
from ..serve.networks import tensor_info
from ..serve.repository import newest_table, served_tables
from ..serve.result_tensors import ResultTensors
from ..serve.server import require_packages
from ..serve.settings import ServerSettings

if TYPE_CHECKING:
    from ..infer import Infer
    from ..serve.messages import TensorInfo

__all__ = ["WrapperModel", "export"]

#: The suffixes of the files that each of Triton's backends loads. Its backends have the names of ours.
_SUFFIXES = {"onnxruntime": (".onnx",), "openvino": (".onnx", ".xml"), "tensorrt": (".engine", ".plan")}
_MODEL_PY = '''"""A model of `infersdk`, with its preprocessing and postprocessing: {name}."""

from infersdk.integrations.triton import WrapperModel


class TritonPythonModel(WrapperModel):
    """Triton's python backend looks for this name."""
'''


def export(config: str | os.PathLike[str] | Mapping[str, Any], folder: str | os.PathLike[str]) -> list[str]:
    """Writes a model repository; returns the names of its models.

    Each model is loaded once, to learn its inputs and outputs; of one with versions the newest is written.

    Args:
        config: a file or a mapping with a table `models`, as `infersdk serve` takes it.
        folder: of the repository; an exported model that is there already is replaced, when the new one is complete.

    Raises:
        BackendUnavailableError: packages of the extra `serve` are missing.
        ConfigError: a model that Triton cannot serve, or a wrong configuration.
        BackendError, ModelError: what loading raises.
        OutputError: the folder cannot be made, or has another file or folder with the name of a model.
    """
    require_packages()
    tables = served_tables(config)
    inputs = {*_texts(tables), *([] if isinstance(config, Mapping) else [os.fspath(config)])}
    newest = {name: newest_table(name, table) for name, table in tables.items()}
    for name, (_, table) in newest.items():
        # The source of an exported model may be in it: the new one has a copy.
        _check_target(Path(folder) / name, inputs - {*_texts(table)})
        _source(name, table)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:  # a file has its name, for example
        reason = error.strerror or error
        raise OutputError(f"cannot make the folder {str(folder)!r} of the repository: {reason}") from None
    for name, (version, table) in newest.items():
        target = Path(folder) / name
        with tempfile.TemporaryDirectory(prefix=".export-", dir=folder) as made:
            new = Path(made) / name
            export_one = _export_network if table.get("type") == "network" else _export_wrapper
            export_one(name, table, new, version)
            if target.exists():
                shutil.rmtree(target)
            new.rename(target)
    return list(newest)


def _check_target(target: Path, inputs: Iterable[str]) -> None:
    """Raises OutputError if there is something with the name of a model that an export must not replace."""
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not (target / "config.pbtxt").is_file():
        raise OutputError(f"{str(target)!r} exists already, and is no exported model; write to another folder")
    for file in inputs:
        if os.path.isfile(file) and Path(os.path.realpath(file)).is_relative_to(os.path.realpath(target)):
            raise OutputError(f"{str(target)!r} has an input in it: {file!r}; write to another folder")


def _texts(table: Any) -> Iterator[str]:
    """The texts in a table and in the tables and lists in it; some are paths."""
    if isinstance(table, str):
        yield table
    elif isinstance(table, (Mapping, list, tuple)):
        for value in table.values() if isinstance(table, Mapping) else table:
            yield from _texts(value)


def _export_network(name: str, table: dict[str, Any], target: Path, version: str) -> None:
    backend = table.get("backend", "onnxruntime")
    if backend not in _SUFFIXES:
        raise ConfigError(
            f"models.{name}: Triton has no backend for {backend!r}; those of {', '.join(_SUFFIXES)} are exported"
        )
    if backend == "openvino" and "precision" in table:
        raise ConfigError(
            f"models.{name}: Triton's openvino backend has no setting for precision = {table['precision']!r}; leave it "
            "out, or export a model file of that precision"
        )
    source = _source(name, table)
    if source.suffix not in (suffixes := _SUFFIXES[backend]):
        hint = "; build one: infersdk build MODEL -o MODEL.engine" if backend == "tensorrt" else ""
        raise ConfigError(
            f"models.{name}: Triton's {backend} backend loads {' or '.join(suffixes)}, not {source.name}{hint}"
        )
    # Triton chooses the device.
    with registry.load_table(name, {**table, "path": source}, {"device": None}) as network:
        inputs = [tensor_info(spec) for spec in network.input_specs]
        outputs = [tensor_info(spec) for spec in network.output_specs]
        batch = (network.max_batch or DEFAULT_BATCH) if _is_batched(network) else 0
    file = _copy_model(source, target / version)
    _write_config(target, name, inputs, outputs, batch, {"backend": backend, "default_model_filename": file})


def _is_batched(network: Infer) -> bool:
    """Whether each row of the inputs has a row in each output, by the names of the dimensions or by runs."""
    if not all(spec.has_free_batch for spec in (*network.input_specs, *network.output_specs)):
        return False
    if names_rows(network):
        return True
    if not has_rows(network):
        return False  # nothing shows that the rows are those of the inputs
    try:
        TensorRequests(network).batch_buffer(None).close()
    except UnsupportedModelError:
        return False
    return True


def _source(name: str, table: Mapping[str, Any]) -> ModelSource:
    path = table.get("path")
    if not isinstance(path, str):
        raise ConfigError(
            f"models.{name}: path names the model file, and is {path!r}; compositions and OCR are not exported, "
            "infersdk serve serves them"
        )
    return ModelSource.of(path)


def _copy_model(source: ModelSource, folder: Path) -> str:
    """Copies the files of a model to a new folder. Returns the name of the file to load."""
    folder.mkdir(parents=True)
    path = Path(source)
    for file in source_files(source):
        # A copy of an address has another name in the cache.
        copy = folder / (source.name if file == path else file.relative_to(path.parent))
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    return source.name


def _export_wrapper(name: str, table: dict[str, Any], target: Path, version: str) -> None:
    if "shadow" in table:
        raise ConfigError(f"models.{name}.shadow: Triton has no shadow models; leave the table out")
    source = _source(name, table)
    with create({"models": {name: table}})[name] as model:
        outputs = ResultTensors.of(model).outputs
    files = target / version
    table["path"] = _copy_model(source, files)
    if is_file_of_names(names := table.get("names")):
        shutil.copyfile(names, files / "names.txt")
        table["names"] = "names.txt"
    if (trust := table.get("trust")) is not None and os.path.isfile(trust):
        shutil.copyfile(trust, files / "trust.pem")
        table["trust"] = "trust.pem"
    atomic_write(files / "app.json", json.dumps({"models": {"model": table}}, indent=2) + "\n")
    atomic_write(files / "model.py", _MODEL_PY.format(name=name))
    _write_config(target, name, [ENCODED, PIXELS], outputs, ServerSettings().max_images, {"backend": "python"})


def _write_config(
    target: Path,
    name: str,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    batch: int,
    fields: dict[str, Any],
) -> None:
    """`config.pbtxt`, written through Triton's protobuf, which refuses unknown fields."""
    from google.protobuf.json_format import ParseDict
    from google.protobuf.text_format import MessageToString
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    whole: dict[str, Any] = {
        "name": name, "max_batch_size": batch, "input": [_tensor(info, batch) for info in inputs],
        "output": [_tensor(info, batch) for info in outputs], **fields,
    }  # fmt: skip
    if batch:
        whole["dynamic_batching"] = {"max_queue_delay_microseconds": 2000}
    atomic_write(target / "config.pbtxt", MessageToString(ParseDict(whole, ModelConfig())))


def _tensor(info: TensorInfo, batch: int) -> dict[str, Any]:
    tensor = info.config(bool(batch))
    if batch and len(info.shape) == 1:
        tensor["reshape"] = {"shape": []}  # one number for each image: [N] inside, [N, 1] outside
    return tensor


class WrapperModel:
    """A wrapper as a model of Triton's python backend. Triton calls the methods."""

    def initialize(self, arguments: Mapping[str, str]) -> None:
        """Loads the wrapper from the folder of `model.py`, and runs all batch sizes."""
        folder = Path(arguments["model_repository"]) / arguments["model_version"]
        self._model = create(folder / "app.json")["model"]
        self._model.warm_up()
        self._tensors = ResultTensors.of(self._model)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answers a batch of requests; all of their images are submitted at once."""
        submitted = [self._submit(request) for request in requests]
        return [self._answer(request, one) for request, one in zip(requests, submitted, strict=True)]

    def _submit(self, request: Any) -> list[Any] | Exception:
        try:
            parameters = json.loads(request.parameters() or "{}")
            return [self._model.submit(image, **parameters) for image in self._images(request)]
        except Exception as error:
            return error

    def _images(self, request: Any) -> list[Any]:
        import triton_python_backend_utils as triton

        encoded = triton.get_input_tensor_by_name(request, ENCODED.name)
        pixels = triton.get_input_tensor_by_name(request, PIXELS.name)
        if (encoded is None) == (pixels is None):
            raise InputError(f"give either {ENCODED.name} (encoded images) or {PIXELS.name} (decoded ones)")
        if encoded is None:
            return list(pixels.as_numpy())
        return [bytes(image) for image in encoded.as_numpy().reshape(-1)]

    def _answer(self, request: Any, submitted: list[Any] | Exception) -> Any:
        import triton_python_backend_utils as triton

        try:
            if isinstance(submitted, Exception):
                raise submitted
            results = [future.result() for future in submitted]
            tensors = self._tensors.tensors(results, request.requested_output_names())
        except Exception as error:
            return triton.InferenceResponse([], triton.TritonError(str(error)))
        return triton.InferenceResponse(
            [triton.Tensor(name, np.ascontiguousarray(array)) for name, array in tensors.items()]
        )

    def finalize(self) -> None:
        """Frees the model."""
        self._model.close()
