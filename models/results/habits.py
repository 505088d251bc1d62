"""Errors for members that results of other programs have: each names the member of this result."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING, Any

from ...errors import nearest

__all__ = ["Hints", "Row"]

#: By the name that another program uses: members with the same values. The first that a type has is named.
_MEMBERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("plot", "render", "annotate"), ("draw()",)),
    "show": ("draw().show()",),
    **dict.fromkeys(("boxes", "box", "bbox", "bboxes"), ("xyxy", "polygons", "polygon", "to_supervision()")),
    **dict.fromkeys(("masks", "mask"), ("masks", "to_masks()", 'columns["mask"]')),
    "keypoints": ('columns["keypoints"]',),
    **dict.fromkeys(("probs", "prob", "confidence", "confidences", "conf"), ("scores", "score", "areas")),
    **dict.fromkeys(("class_id", "cls", "classes"), ("class_ids", "class_id")),
    **dict.fromkeys(("class_name", "class_names", "name", "names"), ("labels", "label")),
    **dict.fromkeys(("tracker_id", "track_id", "track_ids", "id", "ids"), ("tracker_id", 'columns["track_id"]')),
    "obb": ("oriented", 'columns["oriented"]'),
    "xyxyxyxy": ("corners", "polygons", "polygon"),
    **dict.fromkeys(("orig_img", "orig_image", "img", "path"), ("image",)),
    **dict.fromkeys(("orig_shape", "shape"), ("size", "class_ids.shape")),
    **dict.fromkeys(("tojson", "json"), ("to_json()",)),
    **dict.fromkeys(("pandas", "to_df", "to_list"), ("to_dicts()", "to_dict()")),
    **dict.fromkeys(("embedding", "features"), ("vector",)),
    "verbose": ("summary()",),
}  # fmt: skip


class Hints:
    """Base of results and their rows: the error for an unknown attribute names the one that is meant, and that for an
    assignment the attribute.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __init_subclass__(cls) -> None:
            super().__init_subclass__()
            # Those that dataclass() makes are for the class without slots, and super() in them fails for its copy.
            for name in ("__setattr__", "__delattr__"):
                if "__dataclass_fields__" in vars(cls) and name in vars(cls):
                    delattr(cls, name)

        def __setattr__(self, name: str, value: Any) -> None:
            raise FrozenInstanceError(f"cannot assign to {name!r}: a {type(self).__name__} has fixed attributes")

        def __delattr__(self, name: str) -> None:
            raise FrozenInstanceError(f"cannot delete {name!r}: a {type(self).__name__} has fixed attributes")

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name.startswith("_"):
                raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name)
            own = [one for one in dir(type(self)) if not one.startswith("_")]
            known = [member for member in _MEMBERS.get(name, ()) if _identifier(member) in own]
            hint = f"; use .{known[0]}" if known else nearest(name, own) or f"; it has {', '.join(own)}"
            if not known and name in _MEMBERS and isinstance(self, Row):
                hint = f"; it is a row of {kind}s, which have .{_MEMBERS[name][0]}"
            # With `name`, and without `obj`, Python adds no second suggestion.
            raise AttributeError(f"{kind} has no attribute {name!r}{hint}", name=name)


class Row(Hints):
    """Base of the rows of a result: a `Detection` is a row of `Detections`."""

    __slots__ = ()

    if TYPE_CHECKING:
        score: float

    @property
    def confidence(self) -> float:
        """`score`, by the name that supervision has for it."""
        return self.score


def _identifier(member: str) -> str:
    return member.partition("(")[0].partition("[")[0].partition(".")[0]
