"""Class names from files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infersdk.errors import ConfigError
from infersdk.models.names import MAX_BYTES, class_names


def test_one_name_a_line(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("cat\n\n  dog \n", "utf-8")
    assert class_names(tmp_path / "names.txt", {}) == ("cat", "dog")


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
            class_names(path, {})
