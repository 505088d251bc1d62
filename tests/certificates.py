"""A certificate for tests of TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["make_certificate"]


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of `localhost` that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
         key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key
