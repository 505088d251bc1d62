"""Configuration: reading of all kinds, checking, and messages that name the place."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import binary, data, lists, one_of, sampled_from

import infersdk
from infersdk.config import convert, model_files, model_tables, read
from infersdk.errors import ConfigError

TOML = """
[models.detector]
type = "yolov5"
path = "weights/yolov5n.onnx"
conf = 0.25
[models.detector.options]
threads = 2
"""
YAML = "models: {detector: {type: yolov5, path: weights/yolov5n.onnx, conf: 0.25, options: {threads: 2}}}\n"
JSON = (
    '{"models": {"detector": {"type": "yolov5", "path": "weights/yolov5n.onnx", "conf": 0.25,'
    ' "options": {"threads": 2}}}}'
)


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", TOML), ("a.yaml", YAML), ("a.yml", YAML), ("a.json", JSON), ("A.JSON", JSON)]
)
def test_all_kinds_say_the_same(name: str, text: str, tmp_path: Path) -> None:
    if Path(name).suffix in (".yaml", ".yml"):
        pytest.importorskip("yaml")
    (tmp_path / name).write_text(text, "utf-8")
    wanted = {
        "models": {
            "detector": {
                "type": "yolov5",
                "path": str(tmp_path / "weights" / "yolov5n.onnx"),
                "conf": 0.25,
                "options": {"threads": 2},
            }
        }
    }
    assert read(tmp_path / name) == wanted
    assert read(str(tmp_path / name)) == wanted


def test_a_mapping_stays_as_it_is() -> None:
    given = {"models": {"a": {"path": "relative.onnx"}}}
    got = read(given)
    assert got == given
    assert got is not given


def test_paths_are_relative_to_the_file_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.toml").write_text(
        'path = "a.onnx"\nname = "path"\nnames = "coco.txt"\n'
        '[[models]]\npath = "b.onnx"\n[[models]]\npath = "/abs/c.onnx"\n[models.inner]\npath = "d.onnx"\n'
        '[[models]]\npath = ""\n'
    )
    monkeypatch.chdir(tmp_path)
    folder = str(tmp_path / "sub")
    assert read("sub/a.toml") == {
        "path": f"{folder}/a.onnx",
        "name": "path",
        "names": f"{folder}/coco.txt",
        "models": [
            {"path": f"{folder}/b.onnx"},
            {"path": "/abs/c.onnx", "inner": {"path": f"{folder}/d.onnx"}},
            {"path": ""},
        ],
    }


def test_the_certificate_of_a_server_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[server]\ncertificate = "a.pem"\nprivate_key = "/k.pem"\n')
    assert read(tmp_path / "a.toml")["server"] == {"certificate": str(tmp_path / "a.pem"), "private_key": "/k.pem"}


def test_a_trusted_key_in_digits_is_no_path(tmp_path: Path) -> None:
    for digits in ("0a" * 32, "0A" * 32):
        (tmp_path / "a.toml").write_text(f'[models.a]\npath = "/a.onnx"\ntrust = "{digits}"\n')
        assert read(tmp_path / "a.toml")["models"]["a"]["trust"] == digits


def test_names_that_are_built_in(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[a]\nnames = "coco"\npath = "coco"\n')
    assert read(tmp_path / "a.toml") == {"a": {"names": "coco", "path": str(tmp_path / "coco")}}
    assert model_files(read(tmp_path / "a.toml")["a"]) == {str(tmp_path / "coco")}


def test_names_that_are_a_list_stay_a_list(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"names": ["cat", "dog"], "path": 5}')
    assert read(tmp_path / "a.json") == {"names": ["cat", "dog"], "path": 5}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.ini", b"", r"a configuration ends in .toml, .yaml, .yml, .json, not in '.ini'"),
        ("plain", b"", r"a configuration ends in .toml, .yaml, .yml, .json, not in ''"),
        ("a.toml", b"[a\nb = 1", r"a.toml': .*line 1"),
        ("a.toml", b"a = 1\na = 2\n", r"a.toml': .*line 2"),
        ("a.toml", b"a = '\xff'", r"a.toml': .*utf-8"),
        ("a.json", b'{"a": }', r"a.json': Expecting value: line 1 column 7"),
        ("a.json", b'{"a": NaN}', r"a.json': NaN is not JSON; give a finite number"),
        ("a.json", b'{"a": 1, "b": {"a": 1, "a": 2}}', r"a.json': the key 'a' is in one table twice"),
        (
            "a.yaml",
            b"b: {a: {c: 1}, c: [a, a]}\na:\n  - d: d\n    'd': 2\n",
            r"a.yaml': the key 'd' is in one table twice",
        ),
        ("a.json", b'{"a": "\xff"}', r"a.json': "),
        ("a.json", b"", r"a.json': "),
        ("a.json", b"[1, 2]", r"a.json': a configuration is a table of names, not a list"),
        ("a.json", b"null", r"a.json': a configuration is a table of names, not a NoneType"),
        ("a.yaml", b"a: [1, 2", r"a.yaml': "),
        ("a.yaml", b"", r"a.yaml': a configuration is a table of names, not a NoneType"),
        ("a.yaml", b"a: !!python/object/apply:os.system ['true']", r"a.yaml': .*python/object"),
    ],
)
def test_files_that_are_wrong(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    if name.endswith(".yaml"):
        pytest.importorskip("yaml")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / name)


HOSTILE: dict[str, str | bytes] = {
    "brackets.toml": "a=" + "[" * 20_000,
    "closed brackets.toml": "a=" + "[" * 20_000 + "]" * 20_000,
    "dotted key.toml": ".".join("a" * 60_000) + "=1",
    "quoted key.toml": ".".join(['"a"'] * 20_000) + "=1",
    "inner key.toml": "x={" + ".".join("a" * 60_000) + "=1}",
    "tables.toml": "\n".join("[" + ".".join("a" * i) + "]" for i in range(1, 400)),
    "inline tables.toml": "a=" + "{a=" * 5_000 + "1" + "}" * 5_000,
    "digits.toml": "a=" + "9" * 5_000,
    "hexadecimal.toml": "a=0x" + "f" * 200_000,
    "no such day.toml": "a=2024-02-30",
    "no such text.toml": b'a="\xff"',
    "brackets.json": '{"a":' + "[" * 20_000 + "]" * 20_000 + "}",
    "objects.json": '{"a":' * 20_000 + "1" + "}" * 20_000,
    "digits.json": '{"a":' + "9" * 5_000 + "}",
    "wide.json": '{"a":[' + "1," * 150_000 + "1]}",
    "large.json": '{"a":"' + "x" * 2_000_000 + '"}',
    "aliases.yaml": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{c}: &{c} [{','.join(['*' + p] * 9)}]\n" for p, c in zip("abcdefghi", "bcdefghij", strict=True)),
    "merges.yaml": "a: &a {x: 1}\n"
    + "".join(f"{c}: &{c} {{<<: [{','.join(['*' + p] * 9)}]}}\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)),
    "itself.yaml": "a: &a [*a]",
    "itself in a map.yaml": "a: &a\n  b: {c: *a}",
    "brackets.yaml": "a: " + "[" * 20_000,
    "closed brackets.yaml": "a: " + "[" * 20_000 + "]" * 20_000,
    "dashes.yaml": "- " * 20_000 + "a",
    "questions.yaml": "? " * 20_000,
    "blocks.yaml": "\n".join(" " * i + "a:" for i in range(500)),
    "digits.yaml": "a: " + "9" * 5_000,
    "base 60.yaml": "a: " + ":".join("1" * 60_000),
    "base 60 with a tag.yaml": 'a: !!int "' + ":".join("1" * 60_000) + '"',
    "no such month.yaml": "a: 2024-13-45",
    "not an integer.yaml": "a: !!int abc",
    "not a time.yaml": "a: !!timestamp abc",
    "unknown tag.yaml": "a: !foo {a: 1}",
    "key.yaml": "? [a]\n: 1",
    "number as key.yaml": "a: {1: 2}",
    "nothing as key.yaml": "~: 2",
    "two documents.yaml": "a: 1\n---\nb: 2\n",
    "no such text.yaml": b"a: \xff\xfe",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_at_once(name: str, tmp_path: Path) -> None:
    if name.endswith(".yaml"):
        pytest.importorskip("yaml")
    content = HOSTILE[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for read_it in (read, infersdk.load, infersdk.models.create):
        start = time.process_time()
        with pytest.raises(ConfigError, match=re.escape(name)):
            read_it(tmp_path / name)
        assert time.process_time() - start < 1


PIECES = {
    "toml": rb"""[a]\n b_=_ 1\n "x" [ ] { } = . 1979-05-27 ''' \n 0x , #""",
    "json": rb"""{ } [ ] "a" : , 1e9 null "\u00 - _""",
    "yaml": rb"""a:_ -_ &x_ *x_ !!set_ !!binary_ ?_ <<:_ { } \n __ |\n % 0x1 1:2 '""",
}


@pytest.mark.parametrize("suffix", PIECES)
@given(data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_read_or_refused(suffix: str, tmp_path: Path, draw: Any) -> None:
    if suffix == "yaml":
        pytest.importorskip("yaml")
    pieces = [piece.replace(b"\\n", b"\n").replace(b"_", b" ") for piece in PIECES[suffix].split()]
    content = b"".join(draw.draw(lists(one_of(sampled_from(pieces), binary(max_size=3)), max_size=40)))
    file = tmp_path / f"a.{suffix}"
    file.write_bytes(content)
    with contextlib.suppress(ConfigError):
        assert isinstance(read(file), dict)


def test_yaml_may_share_settings_by_aliases(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    text = "usual: &usual {conf: 0.5, path: a.onnx}\nmodels:\n  x: {<<: *usual, type: yolov5}\n  y: *usual\n"
    (tmp_path / "a.yaml").write_text(text)
    found = read(tmp_path / "a.yaml")
    assert found["models"]["x"] == {"conf": 0.5, "path": str(tmp_path / "a.onnx"), "type": "yolov5"}
    assert found["models"]["y"] == {"conf": 0.5, "path": str(tmp_path / "a.onnx")}


def test_yaml_may_share_an_address_that_is_locked(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    address, digest = "https://example.com/a.onnx", "0" * 64
    (tmp_path / "a.yaml").write_text(f"models:\n  x: &usual {{path: '{address}'}}\n  y: *usual\n  z: {{<<: *usual}}\n")
    lock = msgspec.json.encode({address: {"address": address, "sha256": digest, "size": 1}})
    (tmp_path / "a.yaml.lock").write_bytes(lock)
    found = read(tmp_path / "a.yaml")["models"]
    assert [table["path"] for table in found.values()] == [f"{address}#sha256={digest}"] * 3


def test_a_mapping_is_checked_too() -> None:
    itself: dict[str, Any] = {}
    itself["a"] = [itself]
    for wrong in (itself, {"a": {1: 2}}, {"a": 2**64}, {"a": [0] * 100_001}):
        with pytest.raises(ConfigError, match="the configuration: "):
            read(wrong)


class Levels(msgspec.Struct):
    levels: list[Literal[1, 2]] = []


class Choices(msgspec.Struct, forbid_unknown_fields=True):
    mode: Literal["a", "b"] | None = None
    inner: Levels | None = None
    by_name: dict[str, Levels] = {}
    pair: tuple[str, Literal["y"]] = ("x", "y")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"mode": "c"}, r"Invalid enum value 'c' - at `\$.mode`; use one of 'a', 'b'"),
        ({"inner": {"levels": [1, 3]}}, r"\$.inner.levels\[1\]`; use one of 1, 2"),
        ({"by_name": {"x": {"levels": [3]}}}, r"use one of 1, 2"),
        ({"pair": ["a", "z"]}, r"use one of .*'y'"),
        ({"mode": 1}, r"thing: mode is 1, not a str \| None"),
    ],
)
def test_invalid_choices_list_the_valid_ones(data: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        convert(data, Choices, "thing")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*none.toml': No such file or directory"):
        read(tmp_path / "none.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match="cannot read the configuration .*folder.toml': Is a directory"):
        read(tmp_path / "folder.toml")
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*null"):
        read("a\0.toml")


def test_yaml_without_its_package_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 1")
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        "from infersdk.config import read\nfrom infersdk.errors import ConfigError\n"
        f"try:\n    read({str(tmp_path / 'a.yaml')!r})\nexcept ConfigError as e:\n    print(e)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert 'a.yaml\': reading YAML needs PyYAML: pip install "infersdk[yaml]"' in out


# ---- structs ----


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    depth: Annotated[int, msgspec.Meta(ge=1)] = 1


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    mode: Literal["fast", "exact"] = "exact"
    conf: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    inner: Inner = msgspec.field(default_factory=Inner)


def test_convert_fills_in_what_is_not_said() -> None:
    made = convert({"name": "a", "inner": {"depth": 3}, "conf": 1}, Outer, "this")
    assert (made.name, made.mode, made.conf, made.inner.depth) == ("a", "exact", 1.0, 3)
    assert isinstance(made.conf, float)


def test_convert_takes_numbers_of_numpy() -> None:
    given = {"name": "a", "conf": np.float32(0.5), "inner": {"depth": 1}}
    assert convert(given, Outer, "this") == Outer(name="a", conf=0.5)
    number = np.float64("nan")
    assert convert({"levels": (np.int64(2), np.uint8(1))}, Levels, "this").levels == [2, 1]
    with pytest.raises(ConfigError, match=re.escape(f"conf is {number!r}, not a float >= 0.0")):
        convert({"name": "a", "conf": number}, Outer, "this")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, r"this thing: .*missing required field `name`"),
        ({"name": 5}, r"this thing: name is 5, not a str"),
        ({"name": "a", "conf": "0.5"}, r"conf is '0.5', not a float"),
        ({"name": "a", "conf": 1.5}, r"conf is 1.5, not a float <= 1.0"),
        ({"name": "a", "mode": "slow"}, r"Invalid enum value 'slow' - at `\$.mode`"),
        ({"name": "a", "inner": {"depth": 0}}, r"inner.depth is 0, not an int >= 1"),
        ({"name": "a", "inner": {"deep": 1}}, r"unknown field `deep` - at `\$.inner`$"),
        ({"name": "a", "nane": 1}, r"unknown field `nane`. Known are: name, mode, conf, inner; did you mean 'name'\?$"),
        ({"name": "a", 5: 1}, r"this thing: "),
    ],
)
def test_convert_names_the_field_what_it_holds_and_what_it_may_hold(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        convert(data, Outer, "this thing")
    assert isinstance(caught.value, ValueError)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("text", ['{"models": {"a": {"path": "a\\u0000b"}}}', '{"models": {"a": [["\\u0000"]]}}'])
def test_null_characters_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ConfigError, match=r"a\.json': the text .* has a null character"):
        read(tmp_path / "a.json")


def test_a_configuration_is_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(ConfigError, match=f"cannot read the configuration .*{name}.*: it is not a regular file"):
            read(tmp_path / f"{name}.json")


@pytest.mark.parametrize("wrong", [None, 3, b"app.toml"])
def test_what_is_neither_a_path_nor_a_mapping(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=f"a configuration is the path of a file or a mapping, not {wrong!r}"):
        read(wrong)


@pytest.mark.parametrize("name", ["model", "Models", "servr"])
def test_a_misspelled_table_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"the configuration has '{name}', which nothing reads; did you mean"):
        model_tables({"models": {"a": {}}, name: {"b": {}}})
    assert list(model_tables({"models": {"a": {}}, "server": {}, "camera": {}})) == ["a"]


def test_the_files_that_a_table_names() -> None:
    table = {"path": "a.onnx", "names": "a.txt", "conf": 0.5, "model": {"path": "b.onnx", "names": ["x"]}}
    assert model_files(table) == {"a.onnx", "a.txt", "b.onnx"}


@pytest.mark.parametrize(("name", "text"), [("a.toml", "x = 1"), ("a.json", '{"x": 1}'), ("a.yaml", "x: 1")])
def test_a_file_with_a_byte_order_mark(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, "utf-8-sig")
    assert read(tmp_path / name) == {"x": 1}
