"""Configuration: validated structs from TOML, YAML, JSON or a dict.

An application's file names its models; which backend runs them is one line of it::

    [models.detector]
    type = "yolov5"
    path = "yolov5n.onnx"          # relative to this file
    backend = "onnxruntime"        # the line to change
    conf = 0.25

    [models.detector.options]      # the backend's own
    threads = 2

`infersdk.models.create(read("app.toml"))` makes the wrappers.
"""

from __future__ import annotations

import codecs
import itertools
import json
import os
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Any, NoReturn, TypeGuard, TypeVar

import msgspec

from .core.files import read_regular
from .core.model_source import is_address, with_digest
from .core.text import HEX_32, without_password
from .data import CLASS_NAMES
from .errors import ConfigError, nearest

__all__ = [
    "addresses_of", "check_values", "convert", "is_file_of_names", "lock_path", "model_files", "model_table",
    "model_tables", "read", "server_table",
]  # fmt: skip

T = TypeVar("T")

#: The tables of a configuration that this package reads.
_TABLES = ("models", "server")
#: Fields that name a model file.
_MODEL_FILES = ("path", "detection", "recognition", "orientation")
#: Fields of the table `server` that name a file.
_SERVER_FILES = ("certificate", "private_key")
_READERS = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}

#: Limits on a configuration, against mistakes and attacks.
MAX_VALUES, MAX_DEPTH = 100_000, 64
MAX_BYTES = {"json": 1 << 20, "toml": 1 << 18, "yaml": 1 << 18}  # as much as is read in a fraction of a second
#: YAML takes longer to read, and an alias repeats its value.
MAX_YAML_VALUES = 20_000
#: Characters of a YAML value that is not just text in quotes: it may be a number, in many forms.
MAX_BARE = 4096
_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"
#: A key of so many parts; TOML's reader takes minutes for a long one.
_LONG_KEY = re.compile(
    rb"""(?:^|[\[{,])[ \t]*(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){%d}""" % MAX_DEPTH, re.MULTILINE
)


def convert(data: Mapping[str, Any], kind: type[T], what: str) -> T:
    """`data` as a struct of type `kind`. Numbers may be NumPy's; text is not converted to numbers.

    Args:
        what: the name of the data, for messages.

    Raises:
        ConfigError: a field is wrong; the message has the field, its value and the valid ones.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{what} is a table, not {data!r}")
    try:
        return msgspec.convert({name: _plain(value) for name, value in data.items()}, kind)
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what}: the text {error.object!r} is not UTF-8") from None
    except msgspec.ValidationError as error:
        fields = [f.name for f in msgspec.structs.fields(kind)] if issubclass(kind, msgspec.Struct) else []
        unknown = re.search("unknown field `([^`]*)`$", str(error))
        hint = f". Known are: {', '.join(fields) or 'none'}{nearest(unknown[1], fields)}" if unknown else ""
        hint = hint or _choices(kind, str(error))
        raise ConfigError(f"{what}: {_reason(str(error), data)}{hint}") from None


def _plain(value: Any) -> Any:
    """Numbers of NumPy, also in lists and tuples, as Python's, and paths as text: msgspec takes no others."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value)) if isinstance(value, tuple) else [*map(_plain, value)]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


#: JSON's names of types in msgspec's messages, and Python's.
_PYTHON_NAMES = {"null": "None", "array": "list", "object": "table"}


def _reason(message: str, data: Any) -> str:
    """msgspec's message with the name and the value of the field: `conf is 3.0, not a float <= 1.0`."""
    match = re.fullmatch(r"Expected `([^`]+)`(.*?)(?:, got `[^`]+`)? - at `\$\.?(.+)`", message, re.DOTALL)
    if match is None:
        return message.removeprefix("Object contains ")
    kinds, limits, path = match.groups()
    steps = re.findall(r"[\w-]+|\.\.\.", path)
    while steps and steps[0] != "...":  # in its place msgspec leaves out a key of a table of free names
        data = data[int(steps[0]) if isinstance(data, (list, tuple)) else steps[0]]
        del steps[0]
    kinds = " | ".join(_PYTHON_NAMES.get(one, one) for one in kinds.split(" | "))
    article = "an" if kinds[0] in "aeiou" else "a"
    given = f"in {reprlib.repr(data)} is" if steps else f"is {reprlib.repr(data)},"
    return f"{path} {given} not {article} {kinds}{limits}"


def _choices(kind: type[Any], message: str) -> str:
    """The valid values, where msgspec says "Invalid enum value 'x' - at `$.a.b[0]`" and no more."""
    match = re.fullmatch(r"Invalid enum value (?:'(.*)'|.*) - at `\$(.*)`", message, re.DOTALL)
    if match is None:
        return ""
    values = _values_at(msgspec.inspect.type_info(kind), re.findall(r"\.(\w+)|\[[^]]*\]", match[2]))
    if not values:
        return ""
    hint = nearest(match[1], [str(value) for value in values]) if match[1] else ""
    return f"; use one of {', '.join(map(repr, values))}{hint}"


def _values_at(info: Any, steps: Sequence[str]) -> list[Any]:
    """The values of a literal type within another type.

    Args:
        steps: the name of a field, or `""` for the items, from each type to the next.
    """
    if isinstance(info, msgspec.inspect.UnionType):
        return [value for one in info.types for value in _values_at(one, steps)]
    if not steps:
        return list(getattr(info, "values", ()))
    if steps[0]:
        inner = [field.type for field in getattr(info, "fields", ()) if field.encode_name == steps[0]]
    else:
        inner = getattr(info, "item_types", [getattr(info, name, None) for name in ("item_type", "value_type")])
    return [value for one in inner for value in _values_at(one, steps[1:])]


def read(source: str | os.PathLike[str] | Mapping[str, Any], *, locked: bool = True) -> dict[str, Any]:
    """A configuration as a dict: from a file (by its suffix .toml, .yaml, .yml or .json), or a mapping as it is.

    Relative paths of model files, of class names and of keys are made relative to the folder of the configuration.
    Addresses get the checksums of its lock file, which `infersdk fetch` writes. The folder and the lock file of a link
    are those of its target.

    Args:
        locked: whether the lock file is read.

    Raises:
        ConfigError: it is neither a path nor a mapping. Or no such file, an unknown suffix, a syntax error (with its
            line), or a file that is larger or nested deeper than any configuration. Or the lock file does not have an
            address, or is damaged.
    """
    if isinstance(source, Mapping):
        data, name = dict(source), "the configuration"
    elif isinstance(source, (str, os.PathLike)):
        data, name = _read_file(Path(source)), repr(str(source))
    else:
        raise ConfigError(f"a configuration is the path of a file or a mapping, not {source!r}")
    try:
        check_values(data)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    if not isinstance(source, Mapping):
        file = Path(source).resolve()
        _anchor_paths(data, file.parent, _read_lock(lock_path(file)) if locked else None)
    return data


def lock_path(config: Path) -> Path:
    """The lock file of a configuration, which is not a link: `app.toml.lock`."""
    return config.with_name(f"{config.name}.lock")


class _Locked(msgspec.Struct, frozen=True):
    address: str
    sha256: str
    size: int


def _read_lock(path: Path) -> Mapping[str, str] | None:
    """The pinned address of each address, and of each pinned one itself; None without a lock file."""
    if not path.exists():
        return None
    try:
        entries = msgspec.json.decode(_content(path, MAX_BYTES["json"]), type=dict[str, _Locked])
        pinned = {name: with_digest(entry.address, entry.sha256) for name, entry in entries.items()}
        return pinned | {one: one for one in pinned.values()}  # `_anchor_paths` visits a table for each alias of it
    except (ValueError, RecursionError, ConfigError) as error:
        raise ConfigError(
            f"the lock file {str(path)!r} is damaged: {error}; `infersdk fetch` writes it again"
        ) from None


def _tables(value: Any) -> Iterator[Any]:
    """The tables in a value, itself included, those of lists as well."""
    if isinstance(value, Mapping):
        yield value
    if isinstance(value, (Mapping, list)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _tables(inner)


def addresses_of(data: Mapping[str, Any]) -> list[str]:
    """The addresses in a configuration, in order."""
    fields = [field for table in _tables(data) for field in table.items()]
    return list(dict.fromkeys(value for key, value in fields if key in _MODEL_FILES and is_address(value)))


def _read_file(file: Path) -> dict[str, Any]:
    kind = _READERS.get(file.suffix.lower())
    name = repr(str(file))
    if kind is None:
        raise ConfigError(f"{name}: a configuration ends in {', '.join(_READERS)}, not in {file.suffix!r}")
    text = _content(file, MAX_BYTES[kind])
    try:
        data = _DECODERS[kind](text)
    except ImportError:
        raise ConfigError(f'{name}: reading YAML needs PyYAML: pip install "infersdk[yaml]"') from None
    except RecursionError:
        raise ConfigError(f"{name}: {_TOO_DEEP}") from None
    except ValueError as error:  # msgspec's and YAML's errors, dates that do not exist, text that is not UTF-8, ...
        raise ConfigError(f"{name}: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{name}: a configuration is a table of names, not a {type(data).__name__}")
    return data


def _content(file: Path, limit: int) -> bytes:
    try:
        return read_regular(file, limit)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {str(file)!r}: {error.strerror or error}") from None


def _decode_toml(text: bytes) -> Any:
    if _LONG_KEY.search(text):
        raise ValueError(f"a key has more than {MAX_DEPTH} parts")
    return msgspec.toml.decode(text.removeprefix(codecs.BOM_UTF8))


def _decode_yaml(text: bytes) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_yaml(yaml.parse(text, loader))
        return yaml.load(text, loader)  # a safe loader
    except (yaml.YAMLError, TypeError, KeyError, AttributeError, IndexError) as error:
        # All but the first come from tags that do not fit their values.
        raise ValueError(str(error)) from None


def _decode_json(text: bytes) -> Any:
    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys: set[str] = set()
        for key, _ in pairs:
            _add_key(keys, key)
        return dict(pairs)

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON; give a finite number")

    return json.loads(text, object_pairs_hook=table, parse_constant=constant)


def _add_key(keys: set[str], key: str) -> None:
    """Refuses the second of two equal keys, as TOML does: one of them would be dropped."""
    if key in keys:
        raise ValueError(f"the key {key!r} is in one table twice; remove one")
    keys.add(key)


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {"json": _decode_json, "toml": _decode_toml, "yaml": _decode_yaml}


def _check_yaml(events: Any) -> None:
    """Checks the structure before it is built: an alias takes no space in the file, however much it repeats."""
    sizes: dict[str, int] = {}  # how many values an anchor's collection has
    # The open collections: their anchors, the count before them, whether the next value is a key, and the keys.
    around: list[tuple[str | None, int, Iterator[bool], set[str]]] = []
    count = 0
    for event in events:
        kind, anchor = type(event).__name__, getattr(event, "anchor", None)
        if around and kind not in ("SequenceEndEvent", "MappingEndEvent"):
            *_, is_key, keys = around[-1]
            if next(is_key) and kind == "ScalarEvent" and event.value != "<<":
                _add_key(keys, event.value)
        if kind in ("SequenceStartEvent", "MappingStartEvent"):
            around.append((anchor, count, itertools.cycle((kind == "MappingStartEvent", False)), set()))
            count += 1
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            closed, before, *_ = around.pop()
            if closed is not None:
                sizes[closed] = count - before
        elif kind == "ScalarEvent":
            count += 1
            if len(event.value) > MAX_BARE and (event.implicit[0] or event.tag is not None):
                raise ValueError(f"a value of {len(event.value):,} characters; put it in quotes, without a tag")
        elif kind == "AliasEvent":
            if any(anchor == opened for opened, *_ in around):
                raise ValueError(f"the alias *{anchor} refers to a value that contains it")
            count += sizes.get(str(anchor), 1)
        if len(around) > MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        if count > MAX_YAML_VALUES:
            raise ValueError(f"it has more than {MAX_YAML_VALUES:,} values, counting what aliases repeat")


def check_values(data: Any) -> None:
    """Raises ValueError for values that no field accepts or no message can show."""
    count, level = 0, [data]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                if odd := [key for key in value if not isinstance(key, str)]:
                    raise ValueError(f"the key {odd[0]!r} is not text; put it in quotes")
                for key in value:
                    _check_text(key)
                below += value.values()
            elif isinstance(value, (list, tuple)):
                below += value
            elif isinstance(value, str):
                _check_text(value)
            elif isinstance(value, int) and not -(2**63) <= value < 2**64:
                raise ValueError(f"a number of {value.bit_length():,} bits; numbers have 64 bits at most")
        count += len(below)
        if count > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_VALUES:,} values")
        if not below:
            return
        level = below
    raise ValueError(_TOO_DEEP)


def _check_text(text: str) -> None:
    if "\0" in text:
        raise ValueError(f"the text {text!r} has a null character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the text {text!r} is not UTF-8") from None


def _is_file(key: str, value: Any) -> bool:
    """Whether a field names a model file, or a file of class names."""
    return is_file_of_names(value) if key == "names" else key in _MODEL_FILES and isinstance(value, str) and value != ""


def is_file_of_names(value: Any) -> TypeGuard[str]:
    """Whether the setting `names` is the path of a file, and neither a list nor the name of a built-in one."""
    return isinstance(value, str) and value not in CLASS_NAMES


def _anchor_paths(data: dict[str, Any], folder: Path, lock: Mapping[str, str] | None) -> None:
    for table in _tables(data):
        for key, value in table.items():
            if key in _MODEL_FILES and is_address(value):
                if lock is not None and value not in lock:
                    raise ConfigError(f"{without_password(value)!r} is not in the lock file; `infersdk fetch` adds it")
                table[key] = value if lock is None else lock[value]
            elif not isinstance(value, str):
                continue
            elif _is_file(key, value) or (key == "trust" and not HEX_32.fullmatch(value.lower())):
                table[key] = str(folder / value)
            elif key == "key" and value.startswith("file:"):
                table[key] = f"file:{folder / value.removeprefix('file:')}"
    if isinstance(server := data.get("server"), dict):
        server.update({key: str(folder / server[key]) for key in _SERVER_FILES if isinstance(server.get(key), str)})


def model_tables(configuration: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tables of the models, by name.

    Args:
        configuration: what `read()` returns.

    Raises:
        ConfigError: it has no model, or a misspelled table.
    """
    for name in configuration:
        if name not in _TABLES and (hint := nearest(name, _TABLES)):
            raise ConfigError(f"the configuration has {name!r}, which nothing reads{hint}; rename or remove it")
    tables = configuration.get("models")
    if not isinstance(tables, Mapping) or not tables:
        raise ConfigError("the configuration has no model; give each a table, [models.detector] for instance")
    return tables


def model_table(configuration: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    """The table of one model; with None, of the only one.

    Raises:
        ConfigError: there is no such model, or it is no table; or the name is None and there are several.
    """
    tables = model_tables(configuration)
    if name is None and len(tables) > 1:
        raise ConfigError(f"the configuration has {len(tables)} models, {', '.join(tables)}; name one of them")
    name = next(iter(tables)) if name is None else name
    if name not in tables:
        raise ConfigError(f"the configuration has no model {name!r}; it has {', '.join(tables)}{nearest(name, tables)}")
    table = tables[name]
    if not isinstance(table, Mapping):
        raise ConfigError(f"models.{name} is a table, not {table!r}")
    return table


def server_table(configuration: Mapping[str, Any]) -> Any:
    """The table of the server's settings; empty where there is none.

    Raises:
        ConfigError: the configuration has a table that a server does not read.
    """
    if unknown := [name for name in configuration if name not in _TABLES]:
        raise ConfigError(
            f"the configuration has {unknown[0]!r}, and a server reads {' and '.join(_TABLES)} alone"
            f"{nearest(unknown[0], _TABLES)}"
        )
    return configuration.get("server", {})


def model_files(table: Mapping[str, Any]) -> set[str]:
    """The files that the table of a model names, those of its parts included: models and class names."""
    fields = [field for part in _tables(table) for field in part.items()]
    return {value for key, value in fields if _is_file(key, value)}
