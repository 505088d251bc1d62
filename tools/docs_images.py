"""Makes the images of the documentation: `python tools/docs_images.py` writes docs/img/*.png.

Each image is written by the first Python block of a page, in a folder with the drawn scenes of tests/docs/scenes.py.
The packaged image of digits is the only other source; infersdk/data/README.md has its origin and licence (CC BY 4.0).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from docs import scenes  # noqa: E402

#: Each image: the page, which of its blocks, the file that the block writes, and files that stand for others.
IMAGES: dict[str, tuple[str, int, str, dict[str, str]]] = {
    "detect": ("tasks/detect.md", 0, "out.png", {}),
    "detect-digits": ("tasks/detect.md", 1, "digits.png", {}),
    "segment": ("tasks/segment.md", 0, "out.png", {}),
    "pose": ("tasks/pose.md", 0, "out.png", {"zidane.jpg": "bus.jpg"}),
    "oriented": ("tasks/oriented.md", 0, "out.png", {}),
    "semantic": ("tasks/semantic.md", 0, "out.png", {}),
    "faces": ("tasks/faces.md", 0, "out.png", {"zidane.jpg": "faces.jpg"}),
    "depth": ("tasks/depth.md", 0, "out.png", {}),
    "anomaly": ("tasks/anomaly.md", 0, "out.png", {}),
    "matte": ("tasks/images.md", 1, "out.png", {}),
    "queries": ("tasks/queries.md", 0, "out.png", {}),
    "anchors": ("tasks/anchors.md", 0, "out.png", {"bus.jpg": "faces.jpg"}),
    "vectors": ("tasks/vectors.md", 2, "out.png", {}),
    "ocr": ("tasks/ocr.md", 0, "out.png", {}),
    "blurred": ("howto/blur-faces.md", 0, "blurred.jpg", {}),
    "tiles": (
        "howto/small-objects.md",
        0,
        "found.jpg",
        {"yolov8n.onnx": "digits_detector.onnx", "aerial.jpg": "sheet.jpg"},
    ),
}
TILED = ("detect", "segment", "pose", "oriented", "semantic", "ocr")


def main() -> None:
    target = ROOT / "docs" / "img"
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        for file in ("bus.jpg", "digits.jpg", "yolov8n.onnx"):
            scenes.make(file, folder)
        people(target / "people.png")
        sheet_of_digits(folder / "sheet.jpg")
        for image, (page, block, output, others) in IMAGES.items():
            blocks = code_blocks(page)[: block + 1]
            for file in scenes.FILES:
                if any(f'"{file}"' in code for code in blocks):
                    scenes.make(file, folder)
            for other, source in others.items():
                if source in scenes.FILES:
                    scenes.make(source, folder)
                shutil.copy(source, other)
            namespace: dict[str, object] = {"__name__": "page"}
            with contextlib.redirect_stdout(io.StringIO()):
                for code in blocks:
                    exec(compile(code, page, "exec"), namespace)
            save(Image.open(output), target / f"{image}.png")
    sheet(target)


def code_blocks(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text("utf-8")
    return re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def save(image: Image.Image, path: Path) -> None:
    """At most 640 pixels wide, in a palette: some 30 to 60 kB."""
    image = image.convert("RGB")
    image.thumbnail((640, 480), Image.Resampling.LANCZOS)
    image.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def people(path: Path) -> None:
    from infersdk import models

    with models.load("yolov8n.onnx", classes=["person"]) as detector:
        save(detector("bus.jpg").draw("bus.jpg"), path)


def sheet_of_digits(path: Path) -> None:
    """The packaged image four times: too large for the packaged detector to find the digits in the whole image."""
    digits = np.asarray(Image.open("digits.jpg"))
    Image.fromarray(np.tile(digits, (2, 2, 1))).save(path, quality=92)


def sheet(target: Path) -> None:
    """One image of six results."""
    width, height = 320, 180
    result = Image.new("RGB", (3 * width + 8, 2 * height + 4), "white")
    for i, name in enumerate(TILED):
        image = Image.open(target / f"{name}.png").convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
        result.paste(image, ((i % 3) * (width + 4), (i // 3) * (height + 4)))
    result.quantize(160, dither=Image.Dither.NONE).save(target / "tasks.png", optimize=True)


if __name__ == "__main__":
    main()
