"""Bundles: a model with its wrapper, settings and golden samples in one verified file.

::

    infersdk.bundles.pack("yolov8n.onnx", "detector.infer", images="samples/", sign_with="release.pem")
    detector = infersdk.models.load("detector.infer", backend="openvino", trust="release.pub")

A bundle is a ZIP file with stored, aligned entries. The first is the manifest, which has the SHA-256 of each part; a
signature covers the manifest. Parts may be encrypted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.lazy import lazy

if TYPE_CHECKING:
    from .bundle import Bundle
    from .golden import GoldenReport
    from .packing import pack, unpack

__all__ = ["Bundle", "GoldenReport", "pack", "unpack"]

# Loading a bundle imports no module that writes one.
__getattr__, __dir__ = lazy(__name__, {"bundle": "Bundle", "golden": "GoldenReport", "packing": "pack unpack"})
