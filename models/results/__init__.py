"""What the wrappers return: small, immutable, with NumPy arrays for all rows at once.

A result is a sequence of rows, best first. It takes the indices of a list (`found[0]`, `found[:3]`) and those of an
array (`found[found.scores > 0.5]`, `found[[0, 2]]`), and goes on to other programs::

    json.dumps(found.to_dicts())                        # any web framework takes the dicts as they are
    found.to_coco(image_id=17, category_ids=[1, 2, 3])
    found.to_supervision()
    found.save("out.jpg", image=frame)                  # the boxes drawn; "out.json" holds the rows
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._lazy import lazy

if TYPE_CHECKING:
    from .class_maps import ClassMap, ClassMaps
    from .classifications import Classification, Classifications
    from .detections import Detection, Detections
    from .embeddings import Embedding, Gallery, Match
    from .image_reference import ImageReference
    from .masks import Mask, Masks
    from .rows import Rows

__all__ = [
    "ClassMap",
    "ClassMaps",
    "Classification",
    "Classifications",
    "Detection",
    "Detections",
    "Embedding",
    "Gallery",
    "ImageReference",
    "Mask",
    "Masks",
    "Match",
    "Rows",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "ClassMap": "class_maps",
        "ClassMaps": "class_maps",
        "Classification": "classifications",
        "Classifications": "classifications",
        "Detection": "detections",
        "Detections": "detections",
        "Embedding": "embeddings",
        "Gallery": "embeddings",
        "ImageReference": "image_reference",
        "Mask": "masks",
        "Masks": "masks",
        "Match": "embeddings",
        "Rows": "rows",
    },
)
