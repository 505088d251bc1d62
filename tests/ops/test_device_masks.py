"""Masks on a device: bit for bit those that the host assembles from the same outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infersdk import Tensor, errors
from infersdk.core.stream import Stream
from infersdk.image import Geometry
from infersdk.ops import DetectionDecoder, assemble_masks
from infersdk.ops.device import DeviceDetectionDecoder
from infersdk.ops.device_masks import DeviceMasks

F = np.float32
DEVICE = "cuda:0"
GEOMETRIES = [
    Geometry.letterbox((323, 177), (64, 64)),
    Geometry.letterbox((30, 21), (64, 64)),  # so small that a tile needs many prototypes
    Geometry.stretch((1920, 33), (64, 64)),
    Geometry.resize_crop((200, 100), 80, (64, 64)),
    Geometry.affine((128, 64), (64, 64), [[-2, 0, 128], [0, 2, -32]]),  # mirrored
]


def on_device(array: np.ndarray) -> Tensor:
    tensor = Tensor.wrap(np.ascontiguousarray(array), DEVICE)
    assert tensor.device_ptr()
    return tensor


def random_batch(
    rng: np.random.Generator, head: str, anchors: int, num: int, size: tuple[int, int], dtype: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of two classes and prototypes, for as many images as there are geometries."""
    n, first = len(GEOMETRIES), 4 if head == "yolov8" else 5
    rows = rng.random((n, anchors, first + 2 + num + 3)).astype(F)
    rows[..., :4] = rows[..., :4] * [64, 64, 40, 40] + [0, 0, 2, 2]
    rows[..., first + 2 :] = rng.normal(0, 1.5, rows[..., first + 2 :].shape)
    output = rows.transpose(0, 2, 1) if head == "yolov8" else rows
    prototypes = rng.normal(0, 1, (n, num, size[1], size[0]))
    return np.ascontiguousarray(output).astype(dtype), prototypes.astype(dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("head", ["yolov5", "yolov8"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_masks_equal_the_hosts(rng: np.random.Generator, head: str, dtype: str) -> None:
    n, first = len(GEOMETRIES), 4 if head == "yolov8" else 5
    for num, size, max_det in ((32, (16, 16), 300), (5, (64, 64), 7), (1, (3, 1), 301)):
        output, prototypes = random_batch(rng, head, 130, num, size, dtype)
        host = DetectionDecoder(head, 2, 130, num + 3, conf=0.3, iou=0.8, max_det=max_det, dtype=dtype)
        with (
            Stream(DEVICE) as stream,
            host,
            DeviceDetectionDecoder(host, n, DEVICE) as decoder,
            decoder.block(n) as block,
            on_device(output) as outputs_on_device,
            on_device(prototypes) as prototypes_on_device,
        ):
            masks = DeviceMasks(decoder, n, capacity=1 << 24)
            decoder.run(outputs_on_device, GEOMETRIES, block, stream=stream)
            masks.run(outputs_on_device, prototypes_on_device, GEOMETRIES, block, stream=stream)
            block.fetch(stream)
            masks.fetch(stream)
            for i, geometry in enumerate(GEOMETRIES):
                found, _ = decoder.unpack(block.numpy(), i)
                table = output[i].T if head == "yolov8" else output[i]
                coefficients = table[found["row"], first + 2 : first + 2 + num].astype(F)
                expected = assemble_masks(prototypes[i], coefficients, found, geometry)
                got = masks.unpack(i, len(found))
                assert len(found)
                assert got.layout.tobytes() == expected.layout.tobytes()
                assert got.bits.tobytes() == expected.bits.tobytes()
            masks.close()


@pytest.mark.gpu
def test_masks_beyond_the_capacity_are_reported(rng: np.random.Generator) -> None:
    output, prototypes = random_batch(rng, "yolov8", 60, 4, (16, 16), "float32")
    n = len(GEOMETRIES)
    host = DetectionDecoder("yolov8", 2, 60, 7, conf=0.1, iou=0.9)
    with (
        host,
        DeviceDetectionDecoder(host, n, DEVICE) as decoder,
        decoder.block(n) as block,
        on_device(output) as outputs_on_device,
        on_device(prototypes) as prototypes_on_device,
    ):
        masks = DeviceMasks(decoder, n, capacity=64)
        decoder.run(outputs_on_device, GEOMETRIES, block)
        masks.run(outputs_on_device, prototypes_on_device, GEOMETRIES, block)
        found, _ = decoder.unpack(block.numpy(), 0)
        with pytest.raises(errors.OutOfMemoryError, match="the capacity is 64"):
            masks.unpack(0, len(found))
        masks.close()


@pytest.mark.gpu
def test_a_block_of_another_run_is_refused(rng: np.random.Generator) -> None:
    output, prototypes = random_batch(rng, "yolov8", 60, 4, (16, 16), "float32")
    n = len(GEOMETRIES)
    with (
        DetectionDecoder("yolov8", 2, 60, 7) as host,
        DeviceDetectionDecoder(host, n, DEVICE) as decoder,
        on_device(output) as outputs_on_device,
        on_device(prototypes) as prototypes_on_device,
    ):
        masks = DeviceMasks(decoder, n)
        row = decoder.row.itemsize
        for shape, dtype in (((n - 1, row), "uint8"), ((n, row - 4), "uint8"), ((n, row), "int8"), ((), "uint8")):
            block = Tensor(shape, dtype, DEVICE)
            with pytest.raises(
                errors.ShapeError, match=rf"the block is {dtype} of .*5 images need uint8 of \(5, {row}\)"
            ):
                masks.run(outputs_on_device, prototypes_on_device, GEOMETRIES, block)
        masks.close()
