"""Writing bundles."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from PIL import Image

from .. import __version__
from ..core.files import IMAGE_SUFFIXES, atomic_path, atomic_write, check_output, image_files
from ..core.model_source import ModelSource
from ..errors import ConfigError, ImageError, OutputError, UnsupportedModelError
from ..graph.info import onnx_info
from ..graph.passes import prepared_model
from ..image import read_image
from ..image.sources import check_several
from ..importers.loading import source_files
from ..loading.registry import load as load_network
from ..models.loading import load
from ..models.registry import TYPES
from ..models.vision import loading_names
from .archive import pieces
from .golden import INPUT_ELEMENTS, LAYER_ELEMENTS, OUTPUT_ELEMENTS, Golden, Graph, Sample, Values, deviation, elements
from .layers import layer_values
from .manifest import FIRST, FORMAT, SIGNATURE, Encryption, Form, Manifest, Part
from .rounding import LOWER, RoundValues
from .sealing import KeySource, Sealer, private_key, read_key

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..core.tensor_spec import TensorSpec
    from ..models import VisionModel
    from .bundle import Bundle

__all__ = ["pack", "unpack", "write_bundle"]

#: The reference of golden samples.
_REFERENCE = "onnxruntime"
#: Tolerance of an output: so many times the largest deviation between runs that should be equal, and at least this.
_FACTOR, _LEAST = 20.0, 1e-4
#: The same for a lower precision, of a run with rounded values. TF32 and FP16 on an H200 and bfloat16 on a processor
#: deviated 0.4 to 1.8 times as much as those runs.
_ROUNDED = 4.0
#: The same for a further form, with the noise of its precision. YOLOv8n and the detector of this package in INT8
#: deviated on OpenVINO 0.2 to 0.9 times as much as such runs on ONNX Runtime.
_FORM = 2.0
#: Relative noise on the input that a run must bear: 4 steps of float32, or one step of a lower precision.
_NOISE = {"fp32": 4 * 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7, "int8": 2.0**-7}
#: Settings that belong to the machine that loads the bundle, as the options of its backend do.
_OF_THE_MACHINE = frozenset(
    {"backend", "options", "preprocess", "decode", "key", "trust", "verify", "sha256", "warm_up"}
)


def pack(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | Sequence[Any],
    samples: int = 4,
    type: str | None = None,
    settings: Mapping[str, Any] | None = None,
    forms: Mapping[str, str | os.PathLike[str]] | None = None,
    name: str | None = None,
    version: str = "",
    licence: str = "",
    origin: str = "",
    sign_with: str | os.PathLike[str] | None = None,
    encrypt: KeySource | None = None,
) -> Manifest:
    """Writes a bundle.

    The golden samples are run on ONNX Runtime, on the processor. The tolerance of an output is 20 times the largest
    deviation between runs that should be equal, and at least 1e-4. These runs are with and without optimisations, and
    with noise of 4 steps of float32 on the input. For TF32, FP16 and bfloat16 it is 4 times the deviation of a run
    whose values are rounded to that precision. A model that overflows in a precision has no tolerance for it. A further
    form is compared with its own values: its tolerances are twice the deviation, with noise of one step of its
    precision. An output whose shape differs between these runs is not compared. `infersdk.bundles.golden.deviation`
    defines the measure.

    Args:
        model: an ONNX file, the reference form. Weights in other files become part of it.
        output: the bundle.
        images: a folder, an image file, or a sequence of images as a call of a wrapper takes them, without NV12 frames.
        samples: maximum number of golden samples.
        type: the wrapper, as `models.load()` takes it; None decides by the file.
        settings: of the wrapper.
        forms: further ONNX files of the model, by precision: `{"int8": "model.int8.onnx"}`.
        name, version, licence, origin: of the model. The name is that of the file where none is given.
        sign_with: a PEM file with an Ed25519 private key.
        encrypt: the key of 32 bytes that encrypts all parts, or where it is; see `Bundle`.

    Raises:
        ConfigError: there is no image, a setting, a form or another argument does not fit, or `output` is a file that
            is read.
        BundleKeyError: `sign_with` or `encrypt` is not a valid key.
        InputError: `images` is one image that is no file.
        OutputError: the file cannot be written, or would exceed 4 GiB or 65,535 entries.
        ModelError, BackendError, ImageError: the model cannot be loaded and run on the samples.
    """
    for argument, value in {"settings": settings, "forms": forms}.items():
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{argument} is a mapping, such as a dict, not {value!r}")
    given = dict(settings or {})
    if wrong := sorted((_OF_THE_MACHINE | loading_names(_REFERENCE)) & given.keys()):
        raise ConfigError(f"{wrong[0]} is a setting of the machine that loads the bundle; leave it out")
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        raise ConfigError(f"samples is a whole number from 1, not {samples!r}")
    source, chosen = ModelSource.of(model), _images(images)[:samples]
    others = {precision: ModelSource.of(file) for precision, file in (forms or {}).items()}
    key = encrypt.removeprefix("file:") if isinstance(encrypt, str) else None
    named = [one for one in (*chosen, given.get("names"), sign_with, key) if isinstance(one, (str, os.PathLike))]
    models = [one for one in (source, *others.values()) if one.path is not None]
    check_output(model, output, *(file for one in models for file in source_files(one)), *named)
    signer = None if sign_with is None else private_key(sign_with)
    salt = os.urandom(32)
    sealer = None if encrypt is None else Sealer(read_key(encrypt), salt)
    files = [_png(image, given.get("channel_order", "bgr")) for image in chosen]
    if unknown := sorted(others.keys() - (_NOISE.keys() - {"fp32"})):
        raise ConfigError(f"a further form is for fp16, bf16 or int8, not for {unknown[0]!r}; the model itself is fp32")
    for precision, one in others.items():
        _check_form(one, precision, source)
    recorder = _Recorder(source, type, given)
    golden, wrapper = recorder.golden(files, others)
    classes = list(wrapper.class_names)
    if "names" in given:
        given["names"] = classes  # the file that they were read from stays here
    kinds = [key for key, one in TYPES.items() if one is wrapper.__class__]
    listed = [Form("model.onnx", "fp32"), *(Form(f"model.{precision}.onnx", precision) for precision in others)]
    parts = {form.part: _whole(one) for form, one in zip(listed, (source, *others.values()), strict=True)}
    parts |= {sample.image: file for sample, file in zip(golden.samples, files, strict=True)}
    parts[golden.values] = recorder.values.tobytes()
    parts["golden.json"] = msgspec.json.encode(golden)
    encryption = None
    if sealer is not None:
        encryption = Encryption(salt.hex(), sealer.check)
        parts = {part: sealer.seal(part, data) for part, data in parts.items()}
    manifest = Manifest(
        format=FORMAT, name=name if name is not None else source.stem, version=version, licence=licence, origin=origin,
        type=kinds[0] if kinds else str(type), settings=given, classes=classes, forms=listed, golden="golden.json",
        parts={part: Part.of(data) for part, data in parts.items()}, encryption=encryption,
        signer=None if signer is None else signer.public_key().public_bytes_raw().hex(),
        created_by=f"infersdk {__version__}",
    )  # fmt: skip
    write_bundle(output, manifest, parts, signer)
    return manifest


def _check_form(form: ModelSource, precision: str, model: ModelSource) -> None:
    """Raises ConfigError for a form of another precision, or with other inputs and outputs than the model.

    Their element types may differ. A size that one of both leaves free fits any.
    """
    found, expected = onnx_info(form), onnx_info(model)
    if found.precision != precision:
        raise ConfigError(
            f"forms has {str(form)!r} for {precision}, and the file is {found.precision}; give the file of that "
            "precision"
        )
    tensors, wanted = (*found.inputs, *found.outputs), (*expected.inputs, *expected.outputs)
    counts = [(len(info.inputs), len(info.outputs)) for info in (found, expected)]
    if counts[0] != counts[1] or not all(map(_fits, tensors, wanted)):
        raise ConfigError(
            f"{str(form)!r} is not a form of {str(model)!r}: it has {', '.join(map(str, tensors))}, and the model has "
            f"{', '.join(map(str, wanted))}; give a file that was made of the model"
        )


def _fits(one: TensorSpec, other: TensorSpec) -> bool:
    """Whether names are equal, and shapes may be."""
    if one.name != other.name or len(one.shape) != len(other.shape):
        return False
    return all(
        a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in zip(one.shape, other.shape, strict=True)
    )


def _whole(source: ModelSource) -> bytes:
    """The bytes of a model, with the weights that it keeps in other files."""
    content = source.read()
    in_memory = ModelSource(None, content, name=source.name, external_data=source.external_data)
    return prepared_model(in_memory, ()) or content


def write_bundle(
    path: str | os.PathLike[str], manifest: Manifest, parts: Mapping[str, bytes], signer: Any = None
) -> None:
    """Writes a bundle of these parts, which are those of the manifest. `signer` is the private key that signs it."""
    head = manifest.encoded()
    own = {FIRST: head, **({SIGNATURE: signer.sign(head)} if signer is not None else {})}
    entries = {name: Part.of(content) for name, content in own.items()}
    with atomic_path(path) as sibling, open(sibling, "wb") as file:
        contents = iter([*own.values(), *(parts[name] for name in manifest.parts)])
        for _, piece in pieces({**entries, **manifest.parts}):
            file.write(piece)
            file.write(next(contents, b""))


def unpack(bundle: Bundle, folder: str | os.PathLike[str]) -> list[Path]:
    """Writes all parts of a bundle to a folder, decrypted, and its manifest. Returns the files.

    Raises:
        OutputError: a file is there already, or cannot be written.
        BundleKeyError, BundlePartError: see `Bundle.read()`.
    """
    files = {name: Path(folder, name) for name in (*bundle.manifest.parts, FIRST)}
    for path in files.values():
        if os.path.lexists(path):
            raise OutputError(f"{str(path)!r} exists already; give an empty folder")
    for name, path in files.items():  # without the key, the first part fails, and nothing is written
        atomic_write(path, bundle.manifest.encoded() if name == FIRST else bundle.read(name))
    return list(files.values())


def _images(images: str | os.PathLike[str] | Sequence[Any]) -> list[Any]:
    if isinstance(images, (str, os.PathLike)):
        path = Path(images)
        found: list[Any] = list(image_files(path)) if path.is_dir() else [path]
    else:
        check_several(images)
        found = list(images)
    if not found:
        raise ConfigError(
            f"there is no image for golden samples in {str(images)!r}; files with the suffixes "
            f"{', '.join(sorted(IMAGE_SUFFIXES))} are read"
        )
    return found


def _png(source: Any, channel_order: str) -> bytes:
    """An image as a PNG file: the pixels that the reference sees, without a decoder's differences."""
    image, buffer = read_image(source, channel_order=channel_order), io.BytesIO()
    if image.format == "nv12":
        raise ImageError("a golden sample is not an NV12 frame; give frames that were read with format='bgr'")
    pixels = image.pixels.reshape(image.pixels.shape[:2]) if image.format == "gray" else image.pixels[..., :3]
    if image.format.startswith("bgr"):
        pixels = np.ascontiguousarray(pixels[..., ::-1])
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


class _Recorder:
    """Runs samples on the reference backend, and keeps the values."""

    def __init__(self, source: ModelSource, type: str | None, settings: Mapping[str, Any]) -> None:
        self._source, self._type, self._settings = source, type, settings
        self._chunks: list[npt.NDArray[np.float32]] = []

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """All values that were kept."""
        return np.concatenate(self._chunks).astype("<f4")

    def _keep(self, array: npt.NDArray[Any], most: int) -> Values:
        offset = sum(chunk.size for chunk in self._chunks)
        self._chunks.append(elements(array, most))
        return Values(tuple(array.shape), offset)

    def _load(self, source: ModelSource | None = None, **settings: Any) -> VisionModel[Any]:
        return load(source or self._source, _REFERENCE, type=self._type, **{**self._settings, **settings})

    def golden(self, files: Sequence[bytes], forms: Mapping[str, ModelSource]) -> tuple[Golden, VisionModel[Any]]:
        """The golden samples, and the wrapper that was used, which is closed."""
        with self._load() as model:
            parameters = {name: getattr(model, name) for name in sorted(model.per_call)}
            runs = [model.details.run_once(file, parameters) for file in files]
            _check_finite(str(self._source), [[outputs for _, outputs, _ in runs]])
            samples = []
            for number, (feed, _, result) in enumerate(runs):
                inputs = {name: self._keep(array, INPUT_ELEMENTS) for name, array in feed.items()}
                samples.append(Sample(f"golden/{number}.png", inputs, result().to_dicts()))
        chooses_head = "decode_head" in model.settings.__struct_fields__ and "decode_head" not in self._settings
        graphs: list[Graph] = []
        for precision, source in {"fp32": self._source, **forms}.items():
            # By the names of their outputs: some heads are always decoded by the graph.
            found: dict[tuple[str, ...], Graph] = {}
            for head in ({"decode_head": "graph"}, {}) if chooses_head else ({},):
                graph = self._graph(source, precision, files, parameters, head)
                found.setdefault(tuple(graph.outputs[0]), graph)
            graphs += found.values()
        return Golden(_REFERENCE, "golden/values.f32", parameters, samples, graphs), model

    def _graph(
        self,
        source: ModelSource,
        precision: str,
        files: Sequence[bytes],
        parameters: Mapping[str, Any],
        head: Mapping[str, Any],
    ) -> Graph:
        """The values of one form, computed by itself."""
        with self._load(source, **head) as model:
            runs = [model.details.run_once(file, parameters) for file in files]
            feeds, expected = [run[0] for run in runs], [run[1] for run in runs]
            noisy = [model.network(_with_noise(feed, _NOISE[precision])) for feed in feeds]
            source = source.with_passes(*model.network.model.passes)
        plain = _run(source, feeds)
        _check_finite(str(source), [expected, noisy, plain])
        factor = _FACTOR if precision == "fp32" else _FORM
        tolerances = {precision: _tolerances(expected, [noisy, plain], factor)}
        for lower in LOWER if precision == "fp32" else ():
            try:
                content = prepared_model(source.with_passes(RoundValues(lower)), ())
            except UnsupportedModelError:
                continue
            # In memory: the cache does not keep it.
            rounded = source if content is None else ModelSource(None, content, name=source.name)
            measured = _tolerances(expected, [_run(rounded, feeds)], _ROUNDED)
            if all(map(math.isfinite, measured.values())):  # otherwise the model overflows in it
                least = tolerances[precision]
                tolerances[lower] = {name: max(one, least[name]) for name, one in measured.items() if name in least}
        values = layer_values(source, feeds[0], backend=_REFERENCE)
        layers = {name: (node, self._keep(array, LAYER_ELEMENTS)) for name, node, array in values}
        outputs = [{name: self._keep(array, OUTPUT_ELEMENTS) for name, array in one.items()} for one in expected]
        return Graph(outputs, tolerances, layers)


def _run(source: ModelSource, feeds: Sequence[Mapping[str, Any]]) -> list[Mapping[str, npt.NDArray[Any]]]:
    """The outputs of a graph as it is, without the optimisations of the runtime."""
    with load_network(source, _REFERENCE, graph_optimization="disabled") as network:
        return [network(dict(feed)) for feed in feeds]


def _check_finite(model: str, runs: Sequence[Sequence[Mapping[str, npt.NDArray[Any]]]]) -> None:
    """Raises UnsupportedModelError for outputs with NaN or infinity, from which no deviation can be measured."""
    for run in runs:
        for number, outputs in enumerate(run, 1):
            for name, array in outputs.items():
                if not np.isfinite(elements(array, OUTPUT_ELEMENTS)).all():
                    raise UnsupportedModelError(
                        f"output {name!r} of {model!r} has NaN or infinity for image {number} of {len(run)}, and "
                        "golden samples need numbers; correct the model, or give other images"
                    )


def _with_noise(feed: Mapping[str, npt.NDArray[Any]], noise: float) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(0)
    return {
        name: (array * (1 + noise * rng.choice([-1.0, 1.0], array.shape))).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in feed.items()
    }


def _tolerances(
    expected: Sequence[Mapping[str, npt.NDArray[Any]]],
    runs: Sequence[Sequence[Mapping[str, npt.NDArray[Any]]]],
    factor: float,
) -> dict[str, float]:
    """The tolerance of each output: `factor` times the largest deviation of any run from the expected outputs.

    An output whose shape differs between runs has none.
    """
    pairs = [pair for run in runs for pair in zip(expected, run, strict=True)]
    largest = {name: 0.0 for name in expected[0] if all(one[name].shape == other[name].shape for one, other in pairs)}
    for reference, other in pairs:
        for name, before in largest.items():
            kept, found = elements(reference[name], OUTPUT_ELEMENTS), elements(other[name], OUTPUT_ELEMENTS)
            largest[name] = max(before, deviation(kept, found, reference[name].shape, OUTPUT_ELEMENTS))
    return {name: max(factor * value, _LEAST) for name, value in largest.items()}
