"""ModelSource: a model to load, in a file or in memory; and addresses of files on other machines.

An address is `hf://org/name@revision/file.onnx` or `s3://bucket/file.onnx#sha256=...`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import io
import mmap
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeGuard

import msgspec

from ..errors import (
    ConfigError,
    InferSDKError,
    InputError,
    ModelError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
    exhausted,
    relative_to,
)
from .files import digest_of, open_regular
from .formats import FORMATS, WEIGHTS_APART, FileFormat, byte_fields, format_of
from .text import HEX_32, without_password

__all__ = [
    "KNOWN_DOMAINS", "Address", "EntrySealer", "ModelLike", "ModelSource", "is_address", "is_configuration",
    "with_digest",
]  # fmt: skip

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+)://(.+)", re.DOTALL)
_HUB = re.compile(r"([\w.-]+/[\w.-]+)(?:@(refs/(?:convert|pr)/[\w.-]+|[\w.-]+))?/((?:[^/@\\]+/)*[^/@\\]+)", re.ASCII)
_COMMIT = re.compile("[0-9a-f]{40}")
#: Protocols of fsspec that do not name another machine.
_LOCAL = frozenset({"file", "local", "memory", "data", "dir", "simplecache", "filecache", "blockcache"})


def is_address(model: object) -> TypeGuard[str]:
    """Whether a model is given by an address, and not by a path."""
    return isinstance(model, str) and _ADDRESS.fullmatch(model) is not None


def is_configuration(model: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether it is the path of a configuration, by its suffix, and not that of a model file. PaddlePaddle 3 keeps
    models in .json.
    """
    if not isinstance(model, (str, os.PathLike)) or isinstance(model, ModelSource) or is_address(model):
        return False
    if not str(model).lower().endswith(".json"):
        return str(model).lower().endswith((".toml", ".yaml", ".yml"))
    path = Path(model)
    return not os.path.isfile(path) or ModelSource(_checked(path)).format is None


def with_digest(address: str, sha256: str | None) -> str:
    """An address with the SHA-256 of its file, which the download must have; None leaves it as it is.

    Raises:
        ConfigError: the address has another one.
    """
    if sha256 is None:
        return address
    before = Address.parse(address).sha256
    if before is not None and before != sha256.lower():
        raise ConfigError(f"{without_password(address)} has another SHA-256 than {sha256}")
    return address if before is not None else f"{address}#sha256={sha256}"


class Address(msgspec.Struct, frozen=True):
    """The parts of an address.

    Attributes:
        protocol: `"hf"`, or one that fsspec knows.
        location: the address without the checksum.
        sha256: of the file, hexadecimal; None where the address has none.
        repository, revision, file: of an address of the hub.
    """

    protocol: str
    location: str
    sha256: str | None
    repository: str = ""
    revision: str | None = None
    file: str = ""

    @property
    def is_pinned(self) -> bool:
        """Whether it names one content for ever: by a checksum, or by a commit of the hub."""
        return self.sha256 is not None or (self.revision is not None and _COMMIT.fullmatch(self.revision) is not None)

    @property
    def shown(self) -> str:
        """The location as messages show it, without a password."""
        return without_password(self.location)

    @property
    def name(self) -> str:
        """The name of the file."""
        return (self.file or self.location.partition("?")[0]).rstrip("/").rpartition("/")[2]

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises ConfigError for an address that is not understood."""
        shown = without_password(text)
        location, _, fragment = text.partition("#")
        match = _ADDRESS.fullmatch(location)
        if match is None or match[1] in _LOCAL:
            raise ConfigError(f"{shown!r} is not an address of a remote file; give the path of a local file")
        key, _, digest = fragment.lower().rpartition("=")
        if fragment and (key != "sha256" or not HEX_32.fullmatch(digest)):
            raise ConfigError(f"{shown!r}: after # write sha256= and 64 hexadecimal digits")
        if match[1] != "hf":
            return cls(match[1], location, digest or None)
        parts = _HUB.fullmatch(match[2])
        if parts is None or ".." in parts[3].split("/"):
            raise ConfigError(f"{shown!r}: an address of the hub is hf://ORGANISATION/NAME@REVISION/FILE")
        return cls("hf", location, digest or None, *parts.groups())


_IN_MEMORY = "model in memory"


class EntrySealer(Protocol):
    """Encrypts the cache entries of a model.

    `seal()` takes a new salt each time, since an entry may be made again with another content. `open()` decrypts in
    place, and raises BundleError for data that `seal()` has not returned for the same name.
    """

    def seal(self, name: str, data: bytes) -> bytes: ...

    def open(self, name: str, content: io.BytesIO) -> None: ...


class ModelSource(os.PathLike[str]):
    """A model in a file, or in memory. It is its path wherever a path is taken, if it has one.

    Data made from a model in memory stays in memory as well: nothing is written unless a folder for
    that is named, or the model has a `sealer`.

    Attributes:
        path: the file; None for a model in memory.
        origin: the file that it is, or that a model in memory was made from, by a conversion for example; None for a
            model that is given in memory.
        content: the bytes of a model in memory; None for a file, and after `forget()`.
        name: its name in messages: the file's name, or that in the address.
        external_data: where the weights are that the model keeps outside of itself: a folder, or for an OpenVINO IR in
            memory its .bin file. None where nothing outside may be read.
        sealer: encrypts its cache entries; None leaves them plain.
        passes: changes of its graph to make before it is loaded, in this order: see `infersdk.graph.passes`.
        approve: called with a network that was loaded from it, before a hot swap changes to that. Raises an error for
            a network that must not serve; None accepts all.
    """

    sealer: EntrySealer | None = None
    passes: tuple[Any, ...] = ()
    approve: Callable[[Any], object] | None = None

    def __init__(
        self,
        path: Path | None,
        content: bytes | None = None,
        *,
        name: str = "",
        external_data: Path | None = None,
        origin: Path | None = None,
        digest: str | None = None,
    ) -> None:
        self.path, self.content = path, content
        self._digest = digest
        self.origin = origin if path is None else path
        self.name = path.name if path is not None else name or _IN_MEMORY
        self.external_data = path.parent if path is not None else external_data

    @classmethod
    def of(cls, model: ModelLike, external_data: str | os.PathLike[str] | None = None) -> ModelSource:
        """The source of a model, checked without reading the file; one whose name ends in .json is read.

        Args:
            model: a path, the bytes of a model, or a binary file that is open for reading. Or the address of a file
                (`infersdk.core.model_source`), which is downloaded if it is not there.
            external_data: the folder of a model's external weights, for a model in memory.

        Raises:
            ModelNotFoundError: the path is empty, or there is nothing at it.
            ModelFormatError: it is a folder, or empty.
            UnsupportedModelError: it is the address of a model whose weights are in another file.
            ConfigError: the path is not UTF-8, or that of a configuration; or `external_data` is given with a path, or
                does not exist.
            InputError: `model` is something else.
        """
        if isinstance(model, ModelSource):
            return model
        if isinstance(model, str) and not model:
            raise ModelNotFoundError("the path of the model is empty; give that of a model file")
        if is_address(model):
            source = cls.of(importlib.import_module("..loading.remote", __package__).local_copy(model), external_data)
            return source._of_address(Address.parse(model))
        if isinstance(model, (str, os.PathLike)):
            if external_data is not None:
                raise ConfigError(
                    "external_data is for a model in memory; a file's external weights are found in its own folder"
                )
            path = _checked(Path(model))
            if is_configuration(path):
                raise ConfigError(
                    f"{str(path)!r} is a configuration, not a model file; give the file that its path names. "
                    "infersdk.load() and infersdk.models.create() take a configuration, as infersdk predict, info, "
                    "serve and fetch do"
                )
            return cls(path.absolute())  # the working directory may change
        content, name = _content(model)
        if not content:
            raise ModelFormatError(f"the {name or _IN_MEMORY} is empty; was it read to its end already?")
        folder = None if external_data is None else Path(external_data)
        if folder is not None and not os.path.exists(folder):
            raise ConfigError(f"external_data: there is nothing at {str(folder)!r}{relative_to(folder)}")
        return cls(None, content, name=name, external_data=folder)

    def _of_address(self, address: Address) -> ModelSource:
        """This copy of the file of an address, under the name that the file has there."""
        if self.name == address.name:  # the cache of the hub keeps names, and files next to each other
            return self
        self.name = address.name or self.name
        if self.format is not None and self.format.key in WEIGHTS_APART:
            raise UnsupportedModelError(
                f"{address.shown} is {self.format.title}, whose weights are in another file, and an address names one "
                "file; download both into one folder, and give the path of the model"
            )
        return self

    @property
    def is_kept(self) -> bool:
        """Whether data that is made from it may be kept in the user's cache."""
        return self.origin is not None or self.sealer is not None

    @functools.cached_property
    def format(self) -> FileFormat | None:
        """Its format, by its content; None where that is not recognised."""
        with self.mapped() as data:
            return format_of(data, self.name)

    def check_format(self, readable: Collection[str] | None, backend: str) -> None:
        """Raises ModelFormatError for a format that a backend does not read, with the remedy.

        Args:
            readable: the formats that it reads, by their keys; None leaves all to the runtime.
        """
        result = self.format
        if readable is not None and result is not None and result.key not in readable:
            raise ModelFormatError(
                f"{str(self)!r} is {result.title}, which backend {backend!r} does not read; "
                f"{result.help_for(str(self))}"
            )

    @property
    def suffix(self) -> str:
        """The suffix of the file's name, as it is."""
        return Path(self.name).suffix

    @property
    def stem(self) -> str:
        """The file's name without its suffix."""
        return Path(self.name).stem

    @property
    def is_onnx(self) -> bool:
        return self.format is FORMATS["onnx"]

    def open(self) -> BinaryIO:
        """Its content as a binary file that can seek.

        Raises:
            ModelFormatError: the file cannot be read.
            OutOfMemoryError: the process has no free file descriptor.
            UnsupportedModelError: it was in memory, and the model that was loaded from it is closed.
        """
        if self.path is None:
            if self.content is None:
                raise UnsupportedModelError(f"the {self.name} is not kept after close(); load it again")
            return io.BytesIO(self.content)
        try:
            return open_regular(self.path)
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> InferSDKError:
        return exhausted(error, repr(str(self))) or ModelFormatError(
            f"{str(self)!r} cannot be read: {error.strerror or error}"
        )

    def read(self) -> bytes:
        """All its bytes. Errors are those of `open()`."""
        if self.content is not None:
            return self.content
        with self.open() as file:
            return file.read()

    def digest(self) -> str:
        """SHA-256 of the content, hexadecimal; of a part of a bundle, as it is stored. Errors are those of `open()`."""
        if self._digest is not None:
            return self._digest
        with self.open() as file:
            return digest_of(file)

    @contextlib.contextmanager
    def mapped(self) -> Iterator[bytes | mmap.mmap]:
        """Its bytes; a file is mapped into memory, for looking at parts of it. Errors are those of `open()`.

        Raises:
            ValueError: the file is empty.
        """
        if self.content is not None:
            yield self.content
            return
        with self.open() as file:
            try:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise self._unreadable(error) from None
        with data:
            yield data

    def mentions(self, word: bytes) -> bool:
        """Whether an ONNX model has `word` outside of long weights. False for other models."""
        return word in self._outline

    @functools.cached_property
    def _outline(self) -> bytes:
        """The graph of an ONNX model without its long weights, and its functions; empty for other models."""
        return b"\0".join(self._scanned(_graph_parts))

    @functools.cached_property
    def foreign_domains(self) -> frozenset[str]:
        """The operator domains that an ONNX model imports and that belong neither to the standard nor to a runtime;
        empty for other models.
        """
        return frozenset(self._scanned(_imported_domains)) - KNOWN_DOMAINS

    @functools.cached_property
    def unranked_inputs(self) -> frozenset[str]:
        """The inputs of an ONNX model that have no shape, not even that of a scalar; empty for other models."""
        return frozenset(self._scanned(_unranked_inputs))

    def _scanned(self, scan: Callable[[bytes | mmap.mmap], Iterator[Any]]) -> list[Any]:
        """The results of a scan of its bytes; [] for other models than ONNX."""
        try:
            with self.mapped() as data:
                return list(scan(data))
        except (ModelError, ValueError):  # loading it raises the error
            return []

    def with_passes(self, *passes: Any) -> ModelSource:
        """The same with further changes of its graph."""
        changed = copy.copy(self)
        changed.passes = (*self.passes, *passes)
        return changed

    def forget(self) -> ModelSource:
        """The same without the bytes of a model in memory."""
        if self.path is not None:
            return self
        rest = ModelSource(None, name=self.name, origin=self.origin)
        rest.sealer, rest.passes = self.sealer, self.passes
        return rest

    def __fspath__(self) -> str:
        """Raises UnsupportedModelError for a model in memory."""
        if self.path is None:
            raise UnsupportedModelError(f"the {self.name} has no path, and a file is needed here; save it first")
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path) if self.path is not None else self.name

    def __repr__(self) -> str:
        return f"<ModelSource {self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelSource) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[Any, ...]:
        return self.path, self.content, self.passes


#: The types of a model that `load()` takes.
ModelLike = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | ModelSource


#: The domains of the ONNX standard and of the runtimes.
KNOWN_DOMAINS = {
    "", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft",
    "com.microsoft.nchwc", "com.microsoft.experimental", "com.microsoft.extensions", "com.ms.internal.nhwc",
    "ai.onnx.contrib", "org.openvinotoolkit", "org.pytorch.aten", "pkg.onnxscript.torch_lib", "trt",
}  # fmt: skip

#: Fields of a ModelProto, of its GraphProto and of an OperatorSetIdProto; and bytes of a weight that is long. Weights
#: in other files are short.
_GRAPH, _OPSET_IMPORT, _FUNCTIONS, _INITIALIZER, _DOMAIN, _LONG = 7, 8, 25, 5, 1, 4096
#: Fields of a GraphProto, of its ValueInfoProto, of the TypeProto of that, and of a type of tensors.
_INPUT, _NAME, _TYPE, _TENSOR_TYPE, _SHAPE = 11, 1, 2, 1, 2


def _graph_parts(data: bytes | mmap.mmap) -> Iterator[bytes]:
    for number, start, end in byte_fields(data, 0, len(data)):
        if number == _GRAPH:
            for inner, first, last in byte_fields(data, start, end):
                if inner != _INITIALIZER or last - first < _LONG:
                    yield data[first:last]
        elif number == _FUNCTIONS:
            yield data[start:end]


def _imported_domains(data: bytes | mmap.mmap) -> Iterator[str]:
    for place in _fields(data, (0, len(data)), _OPSET_IMPORT):
        yield next((data[start:end].decode() for start, end in _fields(data, place, _DOMAIN)), "")


def _unranked_inputs(data: bytes | mmap.mmap) -> Iterator[str]:
    for place in _fields(data, (0, len(data)), _GRAPH, _INPUT):
        if not any(_fields(data, place, _TYPE, _TENSOR_TYPE, _SHAPE)):
            yield from (data[start:end].decode() for start, end in _fields(data, place, _NAME))


def _fields(data: bytes | mmap.mmap, place: tuple[int, int], number: int, *inner: int) -> Iterator[tuple[int, int]]:
    """The places of the fields `number` of a message, or of the fields `inner` within them."""
    for found, start, end in byte_fields(data, *place):
        if found == number:
            yield from _fields(data, (start, end), *inner) if inner else [(start, end)]


def _checked(file: Path) -> Path:
    try:
        str(file).encode()
    except UnicodeEncodeError:
        wrong, encoding = "is not UTF-8, and the runtimes cannot open it; rename it", sys.getfilesystemencoding()
        if encoding != "utf-8":  # the name of the file may be UTF-8
            wrong = f"is not {encoding}, the encoding of the locale of this process; set PYTHONUTF8=1"
        raise ConfigError(f"the path {str(file)!r} {wrong}") from None
    try:
        status = file.stat()
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = getattr(error, "strerror", error)
        raise ModelNotFoundError(f"no model at {str(file)!r} ({reason}){relative_to(file)}") from None
    if os.path.isfile(saved := file / "saved_model.pb"):  # TensorFlow's SavedModel is a folder
        return saved
    if file.is_dir():
        raise ModelFormatError(f"{str(file)!r} is a folder; give the model file in it")
    if not stat.S_ISREG(status.st_mode):
        raise ModelFormatError(f"{str(file)!r} is not a regular file; give the path of a model file")
    if status.st_size == 0:
        raise ModelFormatError(f"{str(file)!r} is empty; was the download cut off?")
    return file


def _content(model: object) -> tuple[bytes, str]:
    """The bytes of a model in memory, and its name if it has one."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model), ""
    read = getattr(model, "read", None)
    if not callable(read) or isinstance(model, io.TextIOBase):
        raise InputError(
            f"a model is a path, bytes, or a binary file that is open for reading, not a {type(model).__name__}"
        )
    try:
        content = read()
    except (OSError, ValueError) as error:  # ValueError: it is closed
        raise ModelFormatError(f"the model cannot be read: {error}") from None
    if not isinstance(content, bytes):
        raise InputError(f"the model is read as {type(content).__name__}, not bytes; open the file with 'rb'")
    name = getattr(model, "name", "")
    return content, Path(name).name if isinstance(name, str) else ""
