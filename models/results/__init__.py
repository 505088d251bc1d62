"""Results of wrappers: small, immutable, with NumPy arrays for all rows at once.

A result is a sequence of rows, best first. It takes the indices of a list (`found[0]`, `found[:3]`) and those of an
array (`found[found.scores > 0.5]`, `found[[0, 2]]`), and goes on to other programs::

    json.dumps(found.to_dicts())                        # any web framework takes the dicts as they are
    found.to_coco(image_id=17, category_ids=[1, 2, 3])
    found.to_supervision()
    found.save("out.jpg", image=frame)                  # the boxes drawn; "out.json" holds the rows
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.lazy import lazy

if TYPE_CHECKING:
    from .agreement import Agreement
    from .anomaly_map import AnomalyMap
    from .class_maps import ClassMap, ClassMaps
    from .classifications import Classification, Classifications
    from .depth_map import DepthMap
    from .detections import Detection, Detections
    from .embeddings import Embedding, Gallery, Match
    from .images import ImageResult, Matte
    from .masks import Mask, Masks
    from .result import ImageReference, Result, ResultTensor, ResultTensorSpec
    from .rows import Rows

__all__ = [
    "Agreement",
    "AnomalyMap",
    "ClassMap",
    "ClassMaps",
    "Classification",
    "Classifications",
    "DepthMap",
    "Detection",
    "Detections",
    "Embedding",
    "Gallery",
    "ImageReference",
    "ImageResult",
    "Mask",
    "Masks",
    "Match",
    "Matte",
    "Result",
    "ResultTensor",
    "ResultTensorSpec",
    "Rows",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "agreement": "Agreement",
        "anomaly_map": "AnomalyMap",
        "class_maps": "ClassMap ClassMaps",
        "classifications": "Classification Classifications",
        "depth_map": "DepthMap",
        "detections": "Detection Detections",
        "embeddings": "Embedding Gallery Match",
        "images": "ImageResult Matte",
        "masks": "Mask Masks",
        "result": "ImageReference Result ResultTensor ResultTensorSpec",
        "rows": "Rows",
    },
)
