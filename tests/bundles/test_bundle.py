"""Bundles: packing, reading, loading; keys and signatures; damaged files."""

from __future__ import annotations

import gc
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from bundle_files import parts_of, rewritten

import infersdk
from infersdk import bundles, models
from infersdk.bundles import Bundle, pack, unpack
from infersdk.bundles.archive import pieces
from infersdk.bundles.loading import GoldenSamples
from infersdk.bundles.manifest import Part
from infersdk.bundles.sealing import Sealer
from infersdk.core.cache import Cache
from infersdk.core.model_source import ModelSource
from infersdk.data import DETECTOR, IMAGE
from infersdk.errors import (
    BackendUnavailableError,
    BundleError,
    BundleFormatError,
    BundleIntegrityError,
    BundleKeyError,
    BundlePartError,
    BundleSignatureError,
    ConfigError,
    ImageError,
    InputError,
    ModelFormatError,
    ModelNotFoundError,
    OutputError,
    UnsupportedModelError,
)
from infersdk.image import HostImage, read_image

pytest.importorskip("onnxruntime")
Image = pytest.importorskip("PIL.Image")
ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")

KEY = bytes(range(32))


class Keys:
    """A key pair as PEM files."""

    def __init__(self, folder: Path, name: str) -> None:
        key = ed25519.Ed25519PrivateKey.generate()
        self.private, self.public = folder / f"{name}.pem", folder / f"{name}.pub"
        form = serialization.PrivateFormat.PKCS8
        encoding, public = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        self.private.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
        self.public.write_bytes(key.public_key().public_bytes(encoding, public))


@pytest.fixture(scope="module", name="keys")
def _keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"), "release")


@pytest.fixture(scope="module", name="plain")
def _plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "digits.infer"
    pack(DETECTOR, path, images=[IMAGE], settings={"conf": 0.4}, version="1.2", licence="Apache-2.0", origin="here")
    return path


@pytest.fixture(scope="module", name="sealed")
def _sealed(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "sealed.infer"
    pack(DETECTOR, path, images=[IMAGE], sign_with=keys.private, encrypt=KEY)
    return path


def small_model(path: Path, weight: float = 0.1, output: str = "y", classes: int = 5, dtype: str = "float32") -> Path:
    """A convolution of images of 32x32, which is packed fast. Its settings are `{"preset": "unit"}`."""
    from onnx_models import node, save, value

    size = ["n", classes, 32, 32]
    weights = {"w": np.full((classes, 3, 1, 1), weight, dtype)}
    tensors = [value("x", ["n", 3, 32, 32], dtype)], [value(output, size, dtype)]
    return save(path, [node("Conv", "x w", output)], *tensors, weights)


@pytest.fixture(name="small")
def _small(tmp_path: Path, keys: Keys, plain: Path) -> Path:
    """A signed bundle of few bytes, whose model is none."""
    return rewritten(plain, tmp_path / "small.infer", {"model.onnx": b"model", "golden.json": b"{}"}, keys.private)


# ---- parts ----


def test_the_manifest(plain: Path) -> None:
    bundle = Bundle(plain)
    manifest = bundle.manifest
    assert (manifest.name, manifest.version, manifest.licence) == ("digits_detector", "1.2", "Apache-2.0")
    assert (manifest.type, manifest.settings, manifest.classes[2]) == ("yolov5", {"conf": 0.4}, "two")
    assert bundle.read("model.onnx") == DETECTOR.read_bytes()
    with pytest.raises(ConfigError, match=r"no part 'none'; its parts are model\.onnx"):
        bundle.read("none")


def test_it_is_a_zip_file_with_aligned_entries(plain: Path) -> None:
    with zipfile.ZipFile(plain) as file:
        assert file.testzip() is None
        assert file.namelist()[0] == "bundle.json"
        assert file.read("model.onnx") == DETECTOR.read_bytes()
    content = plain.read_bytes()
    assert content.index(DETECTOR.read_bytes()) % 64 == 0


def test_packing_again_gives_the_same_bytes(plain: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.infer"
    pack(DETECTOR, again, images=[IMAGE], settings={"conf": 0.4}, version="1.2", licence="Apache-2.0", origin="here")
    assert again.read_bytes() == plain.read_bytes()


def test_unpack(sealed: Path, tmp_path: Path) -> None:
    bundle = Bundle(sealed, key=KEY)
    files = unpack(bundle, tmp_path / "parts")
    assert (tmp_path / "parts" / "model.onnx").read_bytes() == DETECTOR.read_bytes()
    assert len(files) == 1 + len(bundle.manifest.parts)
    with pytest.raises(OutputError, match="exists already"):
        unpack(bundle, tmp_path / "parts")
    with pytest.raises(BundleKeyError):
        unpack(Bundle(sealed, key=bytes(32)), tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_unpack_writes_all_files_or_none(small: Path, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "golden.json").write_text("kept")
    with pytest.raises(OutputError, match=r"golden\.json' exists already"):
        unpack(Bundle(small), tmp_path / "parts")
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["golden.json"]


def test_weights_in_another_file(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model, folder = onnx.load(DETECTOR), tmp_path / "apart"
    folder.mkdir()
    onnx.save_model(model, folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    pack(folder / "model.onnx", tmp_path / "digits.infer", images=[IMAGE])
    shutil.rmtree(folder)
    with models.load(tmp_path / "digits.infer", verify="always") as packed, models.load(DETECTOR) as own:
        assert packed(IMAGE).to_dicts() == own(IMAGE).to_dicts()


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no image for golden samples"):
        pack(DETECTOR, tmp_path / "x.infer", images=[])
    with pytest.raises(ConfigError, match="device is a setting of the machine"):
        pack(DETECTOR, tmp_path / "x.infer", images=[IMAGE], settings={"device": "cpu"})
    for name in ("backend", "key", "threads"):
        with pytest.raises(ConfigError, match=f"{name} is a setting of the machine"):
            pack(DETECTOR, tmp_path / "x.infer", images=[IMAGE], settings={name: "openvino"})
    for samples in (0, 1.5, "4", True):
        with pytest.raises(ConfigError, match="samples is a whole number from 1, not"):
            pack(DETECTOR, tmp_path / "x.infer", images=[IMAGE], samples=samples)  # type: ignore[arg-type]
    for name in ("settings", "forms"):
        with pytest.raises(ConfigError, match=rf"{name} is a mapping, such as a dict, not \['x'\]"):
            pack(DETECTOR, tmp_path / "x.infer", images=[IMAGE], **{name: ["x"]})  # type: ignore[arg-type]
    one = read_image(IMAGE)
    for images in (5, Image.open(IMAGE), one, one.pixels):
        with pytest.raises(InputError, match="an iterable of images is expected, not one image"):
            pack(DETECTOR, tmp_path / "x.infer", images=images)
    with pytest.raises(ImageError, match="not an NV12 frame; give frames that were read with format='bgr'"):
        pack(DETECTOR, tmp_path / "x.infer", images=[HostImage(np.zeros((96, 64), np.uint8), "nv12")])
    frames = [np.zeros((96, 64), np.uint8)]
    with pytest.raises(ImageError, match="not an NV12 frame"):
        pack(DETECTOR, tmp_path / "x.infer", images=frames, settings={"channel_order": "nv12"})
    assert not list(tmp_path.iterdir())


def test_the_pixels_of_golden_samples(tmp_path: Path) -> None:
    """PNG files have no gray images of three dimensions, and no BGR."""
    rng = np.random.default_rng(0)
    gray, color, alpha = (rng.integers(0, 256, (64, 64, channels), np.uint8) for channels in (1, 3, 4))
    model = small_model(tmp_path / "m.onnx")
    for order, step in (({}, -1), ({"channel_order": "rgb"}, 1)):
        pack(model, tmp_path / "x.infer", images=[gray, color, alpha], settings={"preset": "unit", **order})
        bundle = Bundle(tmp_path / "x.infer")
        for number, want in enumerate((gray[..., 0], color[..., ::step], alpha[..., :3][..., ::step])):
            kept = Image.open(io.BytesIO(bundle.read(f"golden/{number}.png")))
            np.testing.assert_array_equal(np.asarray(kept), want)


@pytest.mark.parametrize("which", ["model", "form", "image", "names", "signer", "key"])
def test_no_input_is_overwritten(which: str, keys: Keys, tmp_path: Path) -> None:
    files = {
        "model": DETECTOR, "form": DETECTOR, "image": IMAGE, "names": None, "signer": keys.private, "key": None,
    }  # fmt: skip
    paths = {name: tmp_path / (name if source is None else source.name) for name, source in files.items()}
    paths["form"] = tmp_path / "int8.onnx"
    for name, source in files.items():
        paths[name].write_bytes(KEY if source is None else source.read_bytes())
    before = paths[which].read_bytes()
    with pytest.raises(ConfigError, match="is the model itself|is an input, too"):
        pack(
            paths["model"], paths[which], images=[paths["image"]], forms={"int8": paths["form"]},
            settings={"names": str(paths["names"])}, sign_with=paths["signer"], encrypt=f"file:{paths['key']}",
        )  # fmt: skip
    assert paths[which].read_bytes() == before


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_outputs_without_tolerance(tmp_path: Path, value: float) -> None:
    """JSON has no infinity: such a bundle could not be loaded."""
    path = small_model(tmp_path / "m.onnx", value)
    with pytest.raises(UnsupportedModelError, match=r"output 'y' of .* has NaN or infinity for image 1 of 1"):
        pack(path, tmp_path / "m.infer", images=[IMAGE], settings={"preset": "unit"})
    assert not (tmp_path / "m.infer").exists()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"version": 1.2}, r"Expected `str`, got `float` - at `\$.version`"),
        ({"licence": b"MIT"}, r"Expected `str`, got `bytes` - at `\$.licence`"),
        ({"settings": {"conf": np.float32(0.4)}}, "float32"),
    ],
)
def test_a_manifest_of_wrong_types(plain: Path, tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rewritten(plain, tmp_path / "x.infer", {"model.onnx": b"model"}, **wrong)
    assert not list(tmp_path.iterdir())


# ---- loading ----


def test_another_name_of_the_wrapper(tmp_path: Path, plain: Path) -> None:
    rewritten(plain, tmp_path / "x.infer", parts_of(plain), type="yolov8")
    with pytest.raises(ConfigError, match="for the wrapper 'yolov8', not 'yolov5'"):
        models.load(tmp_path / "x.infer", type="yolov5")
    with pytest.raises(UnsupportedModelError):  # the model is that of a YOLOv5
        models.load(tmp_path / "x.infer", type="yolo11")


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_loading(plain: Path, backend: str) -> None:
    pytest.importorskip(backend)
    with models.load(plain, backend, verify="always") as model, models.load(DETECTOR, backend, conf=0.4) as own:
        assert model.conf == 0.4
        assert model(IMAGE).to_dicts() == own(IMAGE).to_dicts()
    with models.load(plain, backend, conf=0.9) as model:
        assert model.conf == 0.9
    with models.create({"models": {"digits": {"type": "yolov5", "path": str(plain), "backend": backend}}})[
        "digits"
    ] as model:
        assert model.conf == 0.4


def test_wrong_loading(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="for the wrapper 'yolov5', not 'yolov8'"):
        models.load(plain, type="yolov8")
    with pytest.raises(ConfigError, match="verify is one of first, always, never, not 'no'"):
        models.load(plain, verify="no")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is not encrypted, and a key is given; leave it out"):
        models.load(plain, key="env:NOT_THERE")
    for given in ({"key": KEY}, {"trust": "0" * 64}, {"verify": "always"}):
        with pytest.raises(ConfigError, match="key=, trust= and verify= are for a bundle"):
            models.load(DETECTOR, **given)  # type: ignore[arg-type]
    with pytest.raises(ModelFormatError, match=r"a bundle.*models\.load\(\)"):
        infersdk.load(plain)
    with pytest.raises(ModelNotFoundError):
        Bundle(tmp_path / "none.infer")


def test_loading_imports_nothing_that_writes_bundles(plain: Path) -> None:
    code = f"import sys, infersdk; infersdk.models.load({str(plain)!r}).close(); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "infersdk.bundles.loading" in modules
    assert not {"infersdk.bundles.packing", "infersdk.quant", "infersdk.accuracy"} & set(modules)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_close_frees_the_model(sealed: Path, backend: str) -> None:
    pytest.importorskip(backend)

    def in_memory() -> int:
        gc.collect()
        sources = [one for one in gc.get_objects() if isinstance(one, ModelSource)]
        return sum(one.name == sealed.name and one.content is not None for one in sources)

    model = models.load(sealed, backend, key=KEY)
    assert in_memory()
    model.close()
    assert not in_memory()
    assert model.path == str(sealed)


def test_options_that_are_no_table(plain: Path) -> None:
    with pytest.raises(ConfigError, match="options"):
        models.load(plain, options="threads=1")


def test_a_pass_is_remembered(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path))
    checks = []
    check = GoldenSamples.check
    monkeypatch.setattr(GoldenSamples, "check", lambda *given: checks.append(1) or check(*given))
    for verify, expected in (("never", 0), ("first", 1), ("first", 1), ("always", 2)):
        models.load(plain, verify=verify).close()  # type: ignore[arg-type]
        assert len(checks) == expected
    others: list[dict[str, Any]] = [{"conf": 0.5}, {"graph_optimization": "disabled"}]
    for number, settings in enumerate(others, 3):  # with other settings the results may differ
        for _ in range(2):
            models.load(plain, **settings).close()
            assert len(checks) == number
    monkeypatch.setattr("infersdk.bundles.loading.processor_digest", lambda: "another processor")
    models.load(plain).close()
    assert len(checks) == number + 1


@pytest.mark.parametrize(
    ("backend", "kinds"), [("onnxruntime", {"prepared model"}), ("openvino", {"prepared model", "compiled model"})]
)
@pytest.mark.parametrize("encrypted", [False, True])
def test_what_is_made_of_a_bundle_is_kept(
    backend: str, kinds: set[str], encrypted: bool, plain: Path, sealed: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pytest.importorskip(backend)
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path))
    settings = {"verify": "never", **({"key": KEY} if encrypted else {})}
    path, found = sealed if encrypted else plain, []
    for _ in range(2):
        with models.load(path, backend, **settings) as model:
            found.append(model(IMAGE).to_dicts())
        assert {entry.kind for entry in Cache().entries()} == kinds
        made = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.bin")}
        assert all("encrypted" in entry.details for entry in Cache().entries()) == encrypted
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.bin")} == made, "the second load makes nothing"
    assert found[0] == found[1]


@pytest.mark.gpu
def test_the_engine_of_an_encrypted_bundle_is_built_once(
    sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx")
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path))
    built = []
    for _ in range(2):
        with models.load(sealed, "tensorrt-rtx", key=KEY, verify="never") as model:
            assert len(model(IMAGE)) > 0
        entries = Cache().entries()
        assert all("encrypted" in entry.details for entry in entries)
        built.append([(entry.key, entry.created) for entry in entries if entry.kind == "engine"])
    assert built[0] == built[1]
    assert len(built[0]) == 1


TRACED = """
import sys
from infersdk import models
from infersdk.data import IMAGE
for backend in sys.argv[2:]:
    with models.load(sys.argv[1], backend, key=bytes(range(32)), verify="always") as model:
        assert len(model(IMAGE)) > 0
"""


def test_nothing_of_an_encrypted_bundle_is_written_in_plain(sealed: Path, tmp_path: Path) -> None:
    """Whatever file a process writes, the weights are not in it."""
    for name in ("cache", "temp"):
        (tmp_path / name).mkdir()
    environment = {
        **os.environ, "INFERSDK_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "temp"),
        "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    trace = tmp_path / "trace"
    strace = ["strace", "-f", "-qq", "-y", "-s", "0", "-e", "trace=write,pwrite64,writev", "-o", str(trace)]
    backends = [name for name in ("onnxruntime", "openvino") if importlib.util.find_spec(name)]
    command = [sys.executable, "-c", TRACED, str(sealed), *backends]
    traced = shutil.which("strace") is not None
    subprocess.run([*strace, *command] if traced else command, env=environment, cwd=tmp_path, check=True)
    content = DETECTOR.read_bytes()
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path != trace]
    assert not [path for path in written if content[500_000:500_064] in path.read_bytes()]
    if traced:  # files that were removed again, too
        writes = re.findall(r"write\w*\(\d+<(/[^>]*)>.* = (\d+)$", trace.read_text(), re.MULTILINE)
        kept = sum(path.stat().st_size for path in (tmp_path / "cache").glob("*"))  # encrypted, and written once
        nbytes = sum(int(size) for path, size in writes if not path.startswith("/memfd:"))
        assert nbytes - kept < len(content) / 10


def test_the_folder_of_an_encrypted_bundle(sealed: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    models.load(sealed, "openvino", key=KEY, verify="never", cache_dir=str(tmp_path)).close()
    (entry,) = Cache(tmp_path).entries()
    assert list(entry.details) == ["encrypted"]


# ---- keys and signatures ----


@pytest.fixture(name="sources")
def _sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Each place where a key may be."""
    file = tmp_path / "key"
    file.write_text(KEY.hex() + "\n")
    monkeypatch.setenv("THE_KEY", KEY.hex())
    return [KEY, "env:THE_KEY", f"file:{file}", f"command:cat {file}", lambda: KEY]


def test_sources_of_keys(sealed: Path, sources: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "environb", raising=False)  # as on Windows
    for source in sources:
        bundle = Bundle(sealed, key=source)
        assert bundle.read("model.onnx") == DETECTOR.read_bytes()
    monkeypatch.setenv("INFERSDK_BUNDLE_KEY", KEY.hex())
    bundle = Bundle(sealed)
    assert bundle.read("model.onnx") == DETECTOR.read_bytes()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, "there is no key; give key=, or set INFERSDK_BUNDLE_KEY"),
        (bytes(32), "encrypted with another key"),
        (b"short", "32 bytes, or 64 hexadecimal digits"),
        ("env:NOT_THERE", "NOT_THERE has no key"),
        ("file:/not/there", "cannot be read from file"),
        ("command:false", "cannot be read from command"),
        ("command:", "cannot be read from command: there is nothing behind 'command:'"),
        ("file:", "cannot be read from file: there is nothing behind 'file:'"),
    ],
)
def test_wrong_keys(sealed: Path, key: Any, message: str) -> None:
    bundle = Bundle(sealed, key=key)
    with pytest.raises(BundleKeyError, match=message) as error:
        bundle.read("model.onnx")
    assert str(sealed) in str(error.value)


def test_a_wrong_key_of_the_environment(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSDK_BUNDLE_KEY", "file:bundle.key")
    with pytest.raises(BundleKeyError, match="64 hexadecimal digits; env:INFERSDK_BUNDLE_KEY is neither"):
        Bundle(sealed).read("model.onnx")


def test_a_key_without_a_kind_is_not_shown(sealed: Path) -> None:
    with pytest.raises(
        ConfigError, match="a key is 'env:NAME'.*32 bytes, or a function, not this text of 64 characters"
    ) as error:
        models.load(sealed, key=KEY.hex())
    assert KEY.hex() not in str(error.value)


@pytest.mark.parametrize("key", [Path("k.key"), bytearray(32)])
def test_keys_of_other_types(key: Any, sealed: Path) -> None:
    with pytest.raises(ConfigError, match=f"32 bytes, or a function, not a {type(key).__name__}"):
        Bundle(sealed, key=key).read("model.onnx")


def test_without_cryptography(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signer = Bundle(sealed).manifest.signer
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for trust in (None, signer):
        with pytest.raises(BackendUnavailableError, match=r"need cryptography, .*infersdk\[bundle\]"):
            Bundle(sealed, trust=trust)


def test_who_signed(sealed: Path, plain: Path, keys: Keys, tmp_path: Path) -> None:
    other = Keys(tmp_path, "other")
    bundle = Bundle(sealed, trust=keys.public)
    signer = bundle.manifest.signer
    assert signer is not None
    Bundle(sealed, trust=signer)
    Bundle(sealed, trust=signer.upper())
    with pytest.raises(BundleSignatureError, match=f"signed by {signer[:16]}"):
        Bundle(sealed, trust=other.public)
    with pytest.raises(BundleSignatureError, match="has no signature"):
        Bundle(plain, trust=keys.public)
    with pytest.raises(BundleKeyError, match="no public key"):
        Bundle(sealed, trust=keys.private)
    for trust in (keys.public.read_bytes(), 5):
        with pytest.raises(ConfigError, match="trust is 64 hexadecimal digits or the path of a PEM file, not of type"):
            Bundle(sealed, trust=trust)  # type: ignore[arg-type]


def test_a_form_of_another_precision(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a further form is for fp16, bf16 or int8, not for 'fp32'"):
        pack(DETECTOR, tmp_path / "x.infer", images=[IMAGE], forms={"fp32": DETECTOR})
    with pytest.raises(ConfigError, match=r"forms has '.*\.onnx' for int8, and the file is fp32"):
        pack(DETECTOR, tmp_path / "x.infer", images=[IMAGE], forms={"int8": DETECTOR})


@pytest.mark.parametrize("other", [{"output": "z"}, {"classes": 4}])
def test_a_form_of_another_model(tmp_path: Path, other: dict[str, Any]) -> None:
    model = small_model(tmp_path / "m.onnx")
    form = small_model(tmp_path / "form.onnx", dtype="float16", **other)
    words = r"form.onnx' is not a form of '.*m.onnx': it has x: float16 .*, and the model has x: float32 .*y: float32"
    with pytest.raises(ConfigError, match=words):
        pack(model, tmp_path / "x.infer", images=[IMAGE], settings={"preset": "unit"}, forms={"fp16": form})


def test_a_form_of_other_element_types(tmp_path: Path) -> None:
    model, form = small_model(tmp_path / "m.onnx"), small_model(tmp_path / "form.onnx", dtype="float16")
    pack(model, tmp_path / "x.infer", images=[IMAGE], settings={"preset": "unit"}, forms={"fp16": form})
    assert [one.precision for one in Bundle(tmp_path / "x.infer").manifest.forms] == ["fp32", "fp16"]


@pytest.mark.parametrize(
    ("keys", "message"), [({"sign_with": IMAGE}, "has no private key"), ({"encrypt": b"short"}, "a key is 32 bytes")]
)
def test_keys_are_checked_before_the_model(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    """Running the samples takes a while."""
    (tmp_path / "cut.onnx").write_bytes(DETECTOR.read_bytes()[:1000])
    with pytest.raises(BundleKeyError, match=message):
        pack(tmp_path / "cut.onnx", tmp_path / "x.infer", images=[IMAGE], **keys)


# ---- damage ----


def test_a_part_of_another_bundle(sealed: Path, tmp_path: Path, keys: Keys) -> None:
    """Encrypted with the same key, and listed correctly in a signed manifest."""
    parts = {name: stored.getvalue() for name, stored in Bundle(sealed)._stored.items()}
    parts["model.onnx"] = Sealer(KEY, bytes(32)).seal("model.onnx", DETECTOR.read_bytes())
    mixed = rewritten(sealed, tmp_path / "mixed.infer", parts, keys.private)
    with pytest.raises(BundlePartError, match=r"'model\.onnx'.*belongs to another bundle"):
        models.load(mixed, key=KEY)


def test_an_encrypted_part_is_read_twice(sealed: Path) -> None:
    bundle = Bundle(sealed, key=KEY)
    assert bundle.read("model.onnx") == bundle.read("model.onnx") == DETECTOR.read_bytes()


def test_chunks_cannot_be_exchanged(rng: np.random.Generator) -> None:
    sealer, chunk = Sealer(KEY, bytes(32)), (1 << 20) + 16
    for size in (0, 1, 1 << 20, (1 << 20) + 1, 5 << 19):
        data = rng.bytes(size)
        sealed = sealer.seal("a", data)
        content = io.BytesIO(sealed)
        sealer.open("a", content)
        assert content.getvalue() == data
        for wrong in (
            sealed[:-1],
            sealed[chunk:] + sealed[:chunk] if size > 1 << 20 else sealed + b"x",
            sealed[:chunk],
        ):
            if wrong != sealed:
                with pytest.raises(BundlePartError):
                    sealer.open("a", io.BytesIO(wrong))
        with pytest.raises(BundlePartError):
            sealer.open("b", io.BytesIO(sealed))


@pytest.mark.parametrize("kept", [1, 5, 40, 5000, -1])
def test_a_cut_bundle(plain: Path, tmp_path: Path, kept: int) -> None:
    cut = tmp_path / "cut.infer"
    cut.write_bytes(plain.read_bytes()[:kept])
    with pytest.raises(BundleFormatError, match=r"cut\.infer"):
        models.load(cut)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes"),
        (b"PK\3\4", "has 4 bytes"),
        (bytes(100), "does not begin with"),
        (b"{}" * 50, "does not begin"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.infer"
    path.write_bytes(content)
    with pytest.raises(BundleFormatError, match=message):
        Bundle(path)


def test_deep_nesting(plain: Path, tmp_path: Path) -> None:
    """Of the manifest, and of the golden samples."""
    path, deep = tmp_path / "x.infer", b"[" * 100_000
    for manifest in (deep, b'{"format": 1, "name": ' + deep):
        (_, head), (_, end) = pieces({"bundle.json": Part.of(manifest)})
        path.write_bytes(head + manifest + end)
        with pytest.raises(BundleFormatError, match="its manifest is damaged"):
            Bundle(path)
    rewritten(plain, path, {**parts_of(plain), "golden.json": deep})
    with pytest.raises(BundleFormatError, match="its golden samples are damaged"):
        models.load(path)


def test_a_changed_part(small: Path) -> None:
    with zipfile.ZipFile(small) as file:
        golden = file.getinfo("golden.json").header_offset
    content = bytearray(small.read_bytes())
    content[content.index(b"{}", golden)] ^= 1
    small.write_bytes(content)
    with pytest.raises(BundleIntegrityError, match=r"'golden\.json' was changed"):
        Bundle(small)


def test_a_newer_format(plain: Path, tmp_path: Path) -> None:
    newer = rewritten(plain, tmp_path / "newer.infer", {"model.onnx": b"", "golden.json": b""}, format=2)
    with pytest.raises(BundleFormatError, match="has format 2, and this release reads format 1"):
        Bundle(newer)


def test_too_many_parts(plain: Path, tmp_path: Path) -> None:
    """A reader refuses them before it computes the headers."""
    path = tmp_path / "x.infer"
    parts = {"model.onnx": b"", "golden.json": b"", **{f"p{number}": b"" for number in range(65_533)}}
    with pytest.raises(OutputError, match="at most 65,535 entries, not 65,536; pack fewer samples"):
        rewritten(plain, path, parts)
    listed = {name: Part.of(data) for name, data in parts.items()}
    head = msgspec.structs.replace(Bundle(plain).manifest, parts=listed).encoded()
    (_, header), (_, end) = pieces({"bundle.json": Part.of(head)})
    path.write_bytes(header + head + end)
    with pytest.raises(BundleFormatError, match=r"x\.infer': .*at most 65,535 entries, not 65,536"):
        Bundle(path)


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "bundle.json", "a\\b", "", "x" * 300, "bundle.sig"])
def test_names_of_parts(plain: Path, tmp_path: Path, name: str) -> None:
    parts = {part: Part.of(b"") for part in ("model.onnx", "golden.json", name)}
    head = msgspec.structs.replace(Bundle(plain).manifest, parts=parts).encoded()
    (_, header), _ = pieces({"bundle.json": Part.of(head)})
    path = tmp_path / "x.infer"
    path.write_bytes(header + head)
    with pytest.raises(BundleFormatError, match="not a valid name of a part"):
        Bundle(path)


def test_every_bit_counts(small: Path) -> None:
    """A change of a bit of any byte, and a cut at any of them, is refused."""
    content = small.read_bytes()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        assert is_refused(small, bytes(changed)), f"bit {at % 8} of byte {at}"
    for size in range(0, len(content), 5):
        assert is_refused(small, content[:size]), f"{size} bytes"
    assert is_refused(small, content + b"\0")


def is_refused(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    try:
        Bundle(path)
    except BundleError:
        return True
    return False


@pytest.mark.slow
def test_changes_of_a_real_bundle(sealed: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    content = bytearray(sealed.read_bytes())
    damaged = tmp_path / "damaged.infer"
    for bit in rng.integers(0, len(content) * 8, 3000).tolist():
        content[bit // 8] ^= 1 << bit % 8
        assert is_refused(damaged, bytes(content)), f"bit {bit}"
        content[bit // 8] ^= 1 << bit % 8


def test_names_of_the_package() -> None:
    assert set(bundles.__all__) == {"Bundle", "GoldenReport", "pack", "unpack"}
