"""The heads of other projects against their own postprocessing: networks of theirs with random weights, exported to
ONNX, 100 images each. `pytest -s` prints the largest differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model

import infersdk
from infersdk.models import load

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

IMAGES = 100
#: The largest differences that are allowed: pixels of boxes, and values of maps.
PIXELS, VALUES = 1e-3, 1e-4


def images(largest: int = 400) -> Iterator[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    for _ in range(IMAGES):
        height, width = rng.integers(20, largest, 2)
        yield rng.integers(0, 256, (height, width, 3), np.uint8)


def export(module: Any, shape: Sequence[int], path: Path, names: Sequence[str]) -> Path:
    torch.onnx.export(
        module.eval(), torch.rand(shape), str(path), output_names=list(names), dynamo=False, opset_version=17
    )
    return path


class Picked(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A module with outputs as an exporter has them."""

    def __init__(self, module: Any, pick: Callable[[Any], Any]) -> None:
        super().__init__()
        self.module, self.pick = module, pick

    def forward(self, x: Any) -> Any:
        return self.pick(self.module(x))


def pairs(path: Path, largest: int = 400, **settings: Any) -> Iterator[tuple[Any, dict[str, Any], tuple[int, int]]]:
    """For each image: the result, the outputs of the network as tensors, and (height, width)."""
    with infersdk.load(path) as network, load(path, **settings) as model:
        for image in images(largest):
            (inputs,) = model.details.network_inputs([image])
            outputs = {name: torch.from_numpy(array.copy()) for name, array in network(inputs).items()}
            yield model(image), outputs, image.shape[:2]


def standardised(values: Any) -> Any:
    """Values of a network with random weights, which lie close to each other, with the spread of a trained one."""
    return (values - values.mean()) / values.std()


def report(what: str, differences: list[float], limit: float) -> None:
    print(f"\n{what}: largest difference {max(differences):.2g} in {len(differences)} images")
    assert len(differences) == IMAGES
    assert max(differences) <= limit


def off(mine: Any, its: Any) -> float:
    mine, its = np.asarray(mine, np.float64), np.asarray(its, np.float64)
    assert mine.shape == its.shape
    return float(np.abs(mine - its).max(initial=0.0))


def depth_anything() -> Any:
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    backbone = Dinov2Config(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=2, image_size=70, patch_size=14,
        out_indices=[1, 2, 3, 4], reshape_hidden_states=False, apply_layernorm=True,
    )  # fmt: skip
    sizes = {"neck_hidden_sizes": [8, 16, 16, 16], "fusion_hidden_size": 8, "head_hidden_size": 8, "patch_size": 14}
    return DepthAnythingForDepthEstimation(
        DepthAnythingConfig(backbone_config=backbone, reassemble_hidden_size=32, **sizes)
    )


def dpt() -> Any:
    from transformers import DPTConfig, DPTForDepthEstimation

    return DPTForDepthEstimation(
        DPTConfig(
            hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32, image_size=64,
            patch_size=16, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 16, 16, 16], fusion_hidden_size=8,
            is_hybrid=False, readout_type="project",
        )
    )  # fmt: skip


@pytest.mark.parametrize(("make", "side", "preset"), [(depth_anything, 70, "imagenet"), (dpt, 64, "inception")])
def test_depth(tmp_path: Path, make: Any, side: int, preset: str) -> None:
    pytest.importorskip("transformers")
    from transformers import DPTImageProcessor
    from transformers.modeling_outputs import DepthEstimatorOutput

    torch.manual_seed(0)
    module = Picked(make(), lambda found: standardised(found.predicted_depth))
    path = export(module, (1, 3, side, side), tmp_path / "m.onnx", ["predicted_depth"])
    differences = []
    for found, outputs, size in pairs(path, preset=preset):
        output = DepthEstimatorOutput(predicted_depth=outputs["predicted_depth"])
        (its,) = DPTImageProcessor().post_process_depth_estimation(output, [size])
        differences.append(off(found.values, its["predicted_depth"]))
        assert found.values.std() > 0.5
    report(f"depth {make.__name__}, transformers post_process_depth_estimation", differences, VALUES)


def anomalib_model(name: str) -> tuple[Any, int]:
    if name == "padim":
        from anomalib.models.image.padim.torch_model import PadimModel

        padim = PadimModel(backbone="resnet18", pre_trained=False, layers=["layer1", "layer2"], n_features=10)
        padim.gaussian.mean = torch.rand(10, 16 * 16)
        padim.gaussian.inv_covariance = torch.eye(10).repeat(256, 1, 1)
        return padim, 64
    if name == "patchcore":
        from anomalib.models.image.patchcore.torch_model import PatchcoreModel

        patchcore = PatchcoreModel(layers=["layer1", "layer2"], backbone="resnet18", pre_trained=False)
        patchcore.memory_bank = torch.rand(50, 192)
        return patchcore, 64
    from anomalib.models.image.efficient_ad.torch_model import EfficientAdModel

    return EfficientAdModel(), 256


@pytest.mark.parametrize("name", ["padim", "patchcore", "efficient_ad"])
def test_anomaly(tmp_path: Path, name: str) -> None:
    pytest.importorskip("anomalib")
    from anomalib.post_processing import PostProcessor

    torch.manual_seed(0)
    post = PostProcessor()
    module, side = anomalib_model(name)
    found = module.eval()(torch.rand(1, 3, side, side))
    for kind, values in (("image", found.pred_score), ("pixel", found.anomaly_map)):
        low, high = float(values.min()) * 0.9, float(values.max()) * 1.1 + 1e-3
        for which, value in ((f"{kind}_min", low), (f"{kind}_max", high), (f"_{kind}_threshold", (low + high) / 2)):
            getattr(post, which).fill_(value)
    names = ["pred_score", "pred_label", "anomaly_map", "pred_mask"]
    both = torch.nn.Sequential(module, post)
    path = export(
        Picked(both, lambda one: tuple(getattr(one, name) for name in names)),
        (1, 3, side, side),
        tmp_path / "m.onnx",
        names,
    )
    differences = []
    for mine, outputs, size in pairs(path):
        its = torch.nn.functional.interpolate(outputs["anomaly_map"], size, mode="bilinear", align_corners=False)
        differences.append(
            max(off(mine.values, its[0, 0]), abs(mine.score - float(outputs["pred_score"].reshape(-1)[0])))
        )
        assert mine.is_anomalous == bool(outputs["pred_label"].reshape(-1)[0])
        assert mine.mask.shape == size
        assert mine.values.max() - mine.values.min() > 0.1
    report(f"anomaly {name}, anomalib PostProcessor and bilinear interpolation", differences, VALUES)


def test_super_resolution(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers import Swin2SRConfig, Swin2SRForImageSuperResolution

    torch.manual_seed(0)
    config = Swin2SRConfig(image_size=64, embed_dim=12, depths=[2], num_heads=[2], window_size=8, upscale=2)
    module = Picked(
        Swin2SRForImageSuperResolution(config), lambda found: 0.5 + 0.2 * standardised(found.reconstruction)
    )
    path = export(module, (1, 3, 64, 64), tmp_path / "m.onnx", ["reconstruction"])
    differences = []
    for found, outputs, (height, width) in pairs(path, 64, type="image-to-image"):
        # As the example of Swin2SR in transformers: clamp to 0 to 1, times 255, rounded.
        its = (outputs["reconstruction"][0].clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        differences.append(off(found.pixels, its[: 2 * height, : 2 * width]))
        assert found.pixels.std() > 10
    report("super-resolution Swin2SR, clamp and round", differences, 0)


def test_torchvision_ssd(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    module = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5, score_thresh=0.05
    ).eval()
    path = export(module, (1, 3, 96, 128), tmp_path / "m.onnx", ["boxes", "scores", "labels"])
    differences, total = [], 0
    for found, outputs, (height, width) in pairs(path, conf=0.1):
        kept = outputs["scores"] > 0.1
        # Boxes are pixels of the network's input; torchvision's resize_boxes brings them to an image of any size.
        its = torchvision.models.detection.transform.resize_boxes(outputs["boxes"][kept], [96, 128], [height, width])
        order = torch.argsort(outputs["scores"][kept], descending=True, stable=True)
        differences.append(off(found.xyxy, its[order]))
        assert found.class_ids.tolist() == outputs["labels"][kept][order].tolist()
        total += len(found)
    assert total > IMAGES
    report("SSDlite of torchvision, resize_boxes", differences, PIXELS)


def random_queries(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    boxes = np.hstack([rng.uniform(0.2, 0.8, (100, 2)), rng.uniform(0.01, 0.3, (100, 2))])
    outputs = [boxes, rng.normal(-2, 2, (100, 91)), rng.normal(0, 3, (100, 27, 27))]
    return head_model(tmp_path / "m.onnx", outputs, {}, size=108, names=["dets", "labels", "masks"])


def test_rf_detr_with_masks(tmp_path: Path) -> None:
    pytest.importorskip("rfdetr")
    from rfdetr.models.postprocess import PostProcess

    differences, wrong, pixels = [], 0, 0
    for found, outputs, size in pairs(random_queries(tmp_path), 200, conf=0.98):
        named = {"pred_logits": outputs["labels"], "pred_boxes": outputs["dets"], "pred_masks": outputs["masks"]}
        (its,) = PostProcess(num_select=100)(named, torch.tensor([size]), score_threshold=0.98)
        differences.append(off(found.xyxy, its["boxes"]))
        assert found.class_ids.tolist() == its["labels"].tolist()
        wrong += int((found.masks.numpy() != its["masks"][:, 0].numpy()).sum())
        pixels += its["masks"].numel()
    print(f"\nRF-DETR: {wrong} of {pixels} pixels of masks differ")
    assert wrong <= 1e-6 * pixels
    report("RF-DETR with masks, rfdetr PostProcess", differences, PIXELS)


def anchors(
    tmp_path: Path, classes: int, size: int, count: int, softmax: bool, scale: float, names: Sequence[str]
) -> Path:
    rng = np.random.default_rng(1)
    corner = rng.uniform(0, 0.7, (count, 2))
    boxes = np.hstack([corner, corner + rng.uniform(0.05, 0.3, (count, 2))]) * scale
    scores = rng.dirichlet(np.full(classes, 0.3), count) if softmax else rng.uniform(0, 1, (count, classes)) ** 6
    outputs = {"scores": scores, "boxes": boxes}
    return head_model(tmp_path / "m.onnx", [outputs[name] for name in names], {}, size=size, names=names)


def test_ultraface(tmp_path: Path) -> None:
    """The formula of UltraFace's `predict()`: hard NMS of the boxes above the threshold, on fractions, then scaled to
    the image. Its IoU has 1e-5 added to the area of the union, which is left out here.
    """
    torchvision = pytest.importorskip("torchvision")
    path = anchors(tmp_path, 2, 96, 12 * 12 * 3 + 6 * 6 * 2 + 3 * 3 * 2 + 2 * 2 * 3, True, 1.0, ["scores", "boxes"])
    differences = []
    for found, outputs, (height, width) in pairs(path):
        scores, boxes = outputs["scores"][0, :, 1], outputs["boxes"][0]
        rows = torch.nonzero(scores > 0.7)[:, 0]
        kept = rows[torchvision.ops.nms(boxes[rows] * 96, scores[rows], 0.3)]
        differences.append(off(found.xyxy, boxes[kept] * torch.tensor([width, height] * 2)))
        assert len(found) == len(kept) > 3
    report("UltraFace, its published predict() with torchvision's NMS", differences, PIXELS)


def test_yolo_nas(tmp_path: Path) -> None:
    """The formula of super-gradients' PPYoloEPostPredictionCallback (several labels a box, NMS by class), and of its
    processing: longest side 636 of 640, centred padding.
    """
    torchvision = pytest.importorskip("torchvision")
    path = anchors(tmp_path, 7, 96, 12 * 12 + 6 * 6 + 3 * 3, False, 96.0, ["boxes", "scores"])
    differences = []
    for found, outputs, (height, width) in pairs(path):
        boxes, scores = outputs["boxes"][0], outputs["scores"][0]
        rows, classes = (scores > 0.25).nonzero(as_tuple=True)
        kept = torchvision.ops.batched_nms(boxes[rows], scores[rows, classes], classes, 0.7)[:300]
        scale = 92 / max(height, width)
        shown = torch.tensor([round(width * scale), round(height * scale)] * 2)
        pad = (96 - shown) // 2
        # super-gradients divides by the scale; the resized image has whole pixels, of which the factor is taken here.
        its = (boxes[rows][kept] - pad) * torch.tensor([width, height] * 2) / shown
        its = torch.minimum(its.clamp(0), torch.tensor([width, height] * 2))
        differences.append(off(found.xyxy, its))
        assert found.class_ids.tolist() == classes[kept].tolist()
    report("YOLO-NAS, its published callback with torchvision's NMS", differences, PIXELS)
