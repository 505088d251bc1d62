"""Several models on the same images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ClosedError, ConfigError, ImageError, InputError
from ...image import DeviceImage, HostImage, ImageSource, SharedImage, read_image
from ...image.uploads import UploadPools
from ..results import Result
from ..results.plain import plain_rows, plain_value
from .base import Composed, check_models, whole_image

if TYPE_CHECKING:
    from PIL import Image

    from ..image_model import ImageModel
    from .image_request import ImageRequest

__all__ = ["GroupResult", "ModelGroup"]

#: Arguments of `submit()`, `map()` and calls, which are no names of models.
_ARGUMENTS = {"image", "images", "timeout", "deadline", "in_flight", "return_exceptions"}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GroupResult(Result, Mapping[str, Any]):
    """The results of the models of a group for one image, by name.

    `result["road"]` raises the exception of that model, if it failed. The others have their results.

    Attributes:
        names: of the models.
        results: of the models that did not fail, by name.
        errors: the exceptions of the models that failed, by name.
    """

    names: tuple[str, ...]
    results: Mapping[str, Any]
    errors: Mapping[str, BaseException]

    __eq__, __hash__ = object.__eq__, object.__hash__  # as other results, not as a Mapping

    def __getitem__(self, name: str) -> Any:
        if name in self.errors:
            raise self.errors[name]
        return self.results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:  # Mapping's asks for the result, which may raise
        return name in self.names

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dict for each model: `model`, and its rows as `results`, or its exception as `error`."""
        return [{"model": name, **self._plain(name)} for name in self.names]

    def _plain(self, name: str) -> dict[str, Any]:
        if name in self.errors:
            return plain_value(self.errors[name])  # type: ignore[no-any-return]
        return {"results": plain_rows(self.results[name])}

    def summary(self) -> str:
        """The summary of each result below the name of its model."""
        texts = [
            result.summary() if isinstance(result, Result) else repr(result)
            for result in (self.errors.get(name, self.results.get(name)) for name in self.names)
        ]
        return "\n".join(f"{name}:\n{text}" for name, text in zip(self.names, texts, strict=True))

    def _drawn(self, pil: Image.Image) -> Image.Image:
        """The result that replaces the image, and the others over it."""
        drawn = {name: one for name, one in self.results.items() if isinstance(one, Result) and one._is_drawn()}
        replacing = [name for name, one in drawn.items() if one._replaces_image]
        for name, one in drawn.items():
            size = getattr(one, "size", pil.size)
            if len(drawn) > 1 and size != pil.size:
                raise InputError(
                    f"the image has {pil.size[0]} x {pil.size[1]} pixels, and the result {name!r} {size[0]} x "
                    f"{size[1]}; draw each result alone: result[{name!r}].draw(image)"
                )
        if len(replacing) > 1:
            raise InputError(
                f"the results {' and '.join(map(repr, replacing))} replace the image; draw each result alone: "
                f"result[{replacing[0]!r}].draw(image)"
            )
        for name in sorted(drawn, key=lambda name: name not in replacing):
            pil = drawn[name]._drawn(pil)
        return pil

    def _parts(self) -> Iterable[Result]:
        return [one for one in self.results.values() if isinstance(one, Result)]

    def __repr__(self) -> str:
        parts = [f"{name}={self.errors.get(name, self.results.get(name))!r}" for name in self.names]
        return f"<{type(self).__name__}: {', '.join(parts)}>"


class ModelGroup(Composed[GroupResult]):
    """Several models that get the same images: each image is decoded once, and copied to each GPU once.

    ::

        with ModelGroup(detector=YOLOv8("yolov8n.onnx"), pose=YOLOv8Pose("yolov8n-pose.onnx")) as group:
            for result in group.map(frames):
                result["detector"], result["pose"]

    Each model batches in its own pipeline, with its own settings and on its own device; the models run side by side.
    `ModelGroup(**models.create("app.toml"))` takes the models of a configuration. Settings of a call or request are
    passed by the name of a model: `group(image, detector={"conf": 0.5})`.

    Args:
        models: wrappers, compositions or readers of text by name. The group closes them with itself.

    Attributes:
        models: the models by name.
        channel_order: as of the first model; all models take arrays in this order.

    Raises:
        ConfigError: there is no model, one of them is no wrapper, two names have the same one, or a name is that of an
            argument of `submit()` or `map()`.
    """

    task = "group"
    class_names = ()

    def __init__(self, **models: ImageModel[Any]) -> None:
        self.models = models
        self._prepare()
        self.channel_order = next(iter(models.values())).channel_order
        self.__dict__["per_call"] = frozenset(models)
        self._pools = UploadPools()

    def _prepare(self) -> None:
        models = self.models
        if not models:
            raise ConfigError("a ModelGroup has one model or more: ModelGroup(detector=..., pose=...)")
        check_models(models)
        if taken := sorted(_ARGUMENTS & models.keys()):
            raise ConfigError(f"{taken[0]!r} is an argument of submit() or map(); give the model another name")
        if len({id(model) for model in models.values()}) < len(models):
            raise ConfigError(
                "two names of the group have the same model; give each its own: model.clone() of a wrapper, and of a "
                "composition a second one with models of its own"
            )

    def result_type(self) -> type[GroupResult]:
        """The type of the result of an image."""
        return GroupResult

    def _stream(
        self, images: Iterable[ImageSource | HostImage], parameters: Mapping[str, Any]
    ) -> Iterator[GroupResult]:
        return self._map(images, None, False, parameters)

    def _begin(self, image: ImageSource | HostImage, request: ImageRequest) -> None:
        """A request to each model. Errors of models are in the `GroupResult`, unless none can read the image."""
        settings = request.parameters or {}
        for name, own in settings.items():
            if name not in self.models or not isinstance(own, Mapping):
                raise ConfigError(
                    f"{name}={own!r}: settings of a request are a mapping by the name of a model, of "
                    f"{', '.join(self.models)}: {next(iter(self.models))}={{'conf': 0.5}}"
                )
        shared = self._shared(image)
        outcomes: dict[str, Any] = {}

        def ended(name: str, outcome: list[Any]) -> None:
            outcomes.setdefault(name, outcome[0])  # a pipeline that fails may end a request that it refuses
            if len(outcomes) == len(self.models):
                request.end(_joined({name: outcomes[name] for name in self.models}))

        for name, model in self.models.items():
            then = partial(ended, name)
            try:
                request.submit(model, [shared], then, settings.get(name))
            except Exception as error:  # no slot is free, or the model is closed: the others run
                then([error])

    def _shared(self, image: Any) -> Any:
        """The image for all models. An array is in the order of the group, whatever the order of a model is."""
        if DeviceImage.is_one(image):
            return whole_image(image, self.channel_order)
        if isinstance(image, np.ndarray) or hasattr(image, "__dlpack__"):
            image = read_image(image, channel_order=self.channel_order)
        return image if isinstance(image, SharedImage) else SharedImage(image, self._pools)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(f'{name}={model!r}' for name, model in self.models.items())}>"


def _joined(outcomes: Mapping[str, Any]) -> GroupResult | BaseException:
    """The result for an image, or the error of a model if all were cancelled or closed, or none can read the image."""
    errors = {name: one for name, one in outcomes.items() if isinstance(one, BaseException)}
    for kinds in ((CancelledError, ClosedError), ImageError):
        ended = [one for one in errors.values() if isinstance(one, kinds)]
        if len(ended) == len(outcomes):
            return ended[0]
    results = {name: one for name, one in outcomes.items() if name not in errors}
    decoder = next((one.decoder for one in results.values() if isinstance(one, Result)), None)
    return GroupResult(tuple(outcomes), results, errors, decoder=decoder)
