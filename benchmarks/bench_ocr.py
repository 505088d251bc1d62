"""Pages a second of OCR against RapidOCR with the same networks, page by page and with pages side by side.

    pip install rapidocr_onnxruntime==1.4.4     # in an environment of its own: it needs opencv-python
    pytest benchmarks/bench_ocr.py -q -s        # the test data of INFERSDK_ASSETS

Two cores for each (ONNX Runtime's usual threads, one a core, for RapidOCR and for one page at a time; two instances of
one thread each for pages side by side). The rounds alternate, and a ratio is the median over them, with the least and
the largest. INFERSDK_BENCH_ROUNDS is how many there are (default 5). What both read is compared and printed, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds import Spread, times

from infersdk.models import OCR
from infersdk.ops.batch import available_processors

ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "5"))
PAGES = ("ch_en_num.jpg", "en.jpg", "en_rec.jpg", "latin.jpg", "test_without_det.jpg", "text_rec.jpg")
NETWORKS = ("PP-OCRv4_det", "PP-OCRv4_rec", "ppocr_mobile_v2.0_cls")
TARGET = 1.5


@pytest.fixture(scope="module")
def pages(assets: Path) -> list[np.ndarray]:
    cv2 = pytest.importorskip("cv2")
    return [cv2.imread(str(assets / "ocr" / name)) for name in PAGES]


@pytest.fixture(scope="module")
def rapid(assets: Path) -> Callable[[np.ndarray], list[str]]:
    """What RapidOCR reads on a page, by the networks of the test data."""
    module = pytest.importorskip("rapidocr_onnxruntime", reason="pip install rapidocr_onnxruntime==1.4.4")
    paths = {
        f"{kind}_model_path": str(assets / "ocr" / f"ch_{name}_infer.onnx")
        for kind, name in zip(("det", "rec", "cls"), NETWORKS, strict=True)
    }
    engine = module.RapidOCR(**paths)

    def read(page: np.ndarray) -> list[str]:
        result, _ = engine(page)
        return [text for _, text, _ in result or []]

    return read


def ours(assets: Path, backend: str, opened: ExitStack) -> dict[str, Callable[[list[np.ndarray]], list[Any]]]:
    """What we read on pages: one at a time on all cores, and side by side on a core each."""
    pytest.importorskip(backend)
    networks = [assets / "ocr" / f"ch_{name}_infer.onnx" for name in NETWORKS]
    cores = available_processors()
    whole = opened.enter_context(OCR(*networks, backend, threads=cores))
    # Threads that spin while they wait would take the core of the other instance.
    options = {"allow_spinning": False} if backend == "onnxruntime" else {"streams": cores}
    threads = 1 if backend == "onnxruntime" else cores
    single = opened.enter_context(OCR(*networks, backend, threads=threads, **options))
    single.configure_pipeline(instances=cores)
    return {"one page at a time": lambda pages: [whole(page) for page in pages],
            "pages side by side": lambda pages: list(single.map(pages))}  # fmt: skip


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_against_rapidocr(
    backend: str,
    assets: Path,
    pages: list[np.ndarray],
    rapid: Callable[[np.ndarray], list[str]],
    opened: ExitStack,
    claim: Callable[..., None],
) -> None:
    scenarios = ours(assets, backend, opened)
    theirs = [rapid(page) for page in pages]
    for run in scenarios.values():  # warms up as well
        for name, result, texts in zip(PAGES, run(pages), theirs, strict=True):
            missing = {text.replace(" ", "") for text in texts} - {text.replace(" ", "") for text in result.texts}
            print(f"{name}: {len(result)} lines, RapidOCR {len(texts)}, {len(missing)} of these read otherwise")
    contenders = {name: (lambda run=run: run(pages)) for name, run in scenarios.items()}
    taken = times({"RapidOCR": lambda: [rapid(page) for page in pages], **contenders}, ROUNDS)
    theirs_seconds = taken.pop("RapidOCR")
    print(f"RapidOCR: {len(pages) / np.median(theirs_seconds):.2f} pages/s")
    for name, own in taken.items():
        ratio = Spread.of(theirs_seconds / own)
        print(
            f"{backend}, {name}: {len(pages) / np.median(own):.2f} pages/s, {ratio:.2f} times RapidOCR's; "
            f"the target is {TARGET}"
        )
        claim(f"OCR, {backend}, {name}, over RapidOCR", ratio.median, low=ratio.low, high=ratio.high)
