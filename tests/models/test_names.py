"""Class names from files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infersdk.errors import ConfigError
from infersdk.models.names import MAX_BYTES, class_names


def test_one_name_a_line(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    for text, names in (("cat\n  dog \n\n \n", ("cat", "dog")), ("\ufeffcat\r\ndog", ("cat", "dog")), ("\n", ())):
        file.write_text(text, "utf-8")
        assert class_names(file) == names
    for text, line in (("cat\n\n  dog \n", 2), ("\ncat", 1)):
        file.write_text(text, "utf-8")
        with pytest.raises(ConfigError, match=f"line {line} of the class names in .* is blank"):
            class_names(file)


def test_only_regular_files_of_a_limited_size(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(MAX_BYTES + 1)
    refused = {
        str(tmp_path / "pipe"): "it is not a regular file", "/dev/zero": "it is not a regular file",
        str(tmp_path / "large"): "it has more than", "a\0b": "null character",
    }  # fmt: skip
    for path, said in refused.items():
        with pytest.raises(ConfigError, match=f"cannot read the class names in .*: .*{said}"):
            class_names(path)


def test_names_of_data_sets_are_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coco, imagenet = class_names("coco"), class_names("imagenet")
    assert (len(coco), len(set(coco)), coco[0], coco[5], coco[79]) == (80, 80, "person", "bus", "toothbrush")
    assert (len(imagenet), len(set(imagenet)), imagenet[0], imagenet[999]) == (1000, 1000, "tench", "toilet tissue")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coco").write_text("one\n", "utf-8")
    assert class_names("coco") == coco
    assert class_names("./coco") == class_names(Path("coco")) == ("one",)
    with pytest.raises(ConfigError, match="'cocoo': No such file.*built in are coco, imagenet"):
        class_names("cocoo")


@pytest.mark.assets
def test_the_names_of_imagenet_are_in_the_order_of_its_images(assets: Path) -> None:
    """The files of the test data are called by number, WordNet's id and name."""
    names = class_names("imagenet")
    files = [file.stem.split("_", 2) for file in (assets / "imagenet").glob("*.JPEG")]
    alike = [names[int(number)].lower() == name.replace("_", " ").lower() for number, _, name in files]
    assert len(files) > 50
    assert sum(alike) > 0.9 * len(files)
