"""Results of wrappers: small, with NumPy arrays for all rows at once. Attributes cannot be assigned; the arrays can be
changed in place.

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

if TYPE_CHECKING:  # `as` exports a name to type checkers
    from .agreement import Agreement as Agreement
    from .anomaly_map import AnomalyMap as AnomalyMap
    from .class_maps import ClassMap as ClassMap
    from .class_maps import ClassMaps as ClassMaps
    from .classifications import Classification as Classification
    from .classifications import Classifications as Classifications
    from .depth_map import DepthMap as DepthMap
    from .detections import Detection as Detection
    from .detections import Detections as Detections
    from .embeddings import Embedding as Embedding
    from .embeddings import Gallery as Gallery
    from .embeddings import Match as Match
    from .images import ImageResult as ImageResult
    from .images import Matte as Matte
    from .masks import Mask as Mask
    from .masks import Masks as Masks
    from .result import ImageReference as ImageReference
    from .result import Result as Result
    from .result import ResultTensor as ResultTensor
    from .result import ResultTensorSpec as ResultTensorSpec
    from .rows import Rows as Rows

#: The names of each module.
_MODULES = {
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
}

__getattr__, __dir__ = lazy(__name__, _MODULES)
if not TYPE_CHECKING:  # type checkers read the imports above
    __all__ = [name for names in _MODULES.values() for name in names.split()]
