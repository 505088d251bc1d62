"""Several models on the same images."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from ...errors import ClosedError, ConfigError
from ...image import DeviceImage, HostImage, ImageSource, SharedImage
from ...image.uploads import UploadPools
from ...pipeline.request import RequestFuture
from ..ocr import OCR
from ..results import Result
from ..results.plain import plain_rows, plain_value
from ..vision import VisionModel
from .base import Composed, map_requests

if TYPE_CHECKING:
    from PIL import Image
    from typing_extensions import Self

    from ..image_model import CancellableRequest, ImageModel

__all__ = ["GroupResult", "ModelGroup"]


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
        for result in self.results.values():
            if isinstance(result, Result) and result._is_drawn():
                pil = result._drawn(pil)
        return pil

    def _remember_image(self, source: Any) -> None:
        for result in self.results.values():
            if isinstance(result, Result):
                result._remember_image(source)
        Result._remember_image(self, source)

    def __repr__(self) -> str:
        parts = [f"{name}={self.errors.get(name, self.results.get(name))!r}" for name in self.names]
        return f"<{type(self).__name__}: {', '.join(parts)}>"


class ModelGroup:
    """Several models that get the same images: each image is decoded once, and copied to each GPU once.

    ::

        with ModelGroup(detector=YOLOv8("yolov8n.onnx"), pose=YOLOv8Pose("yolov8n-pose.onnx")) as group:
            for result in group.map(frames):
                result["detector"], result["pose"]

    Each model batches in its own pipeline, with its own settings and on its own device; the models run side by side.
    `ModelGroup(**models.create("app.toml"))` takes the models of a configuration.

    Args:
        models: wrappers, compositions or readers of text by name. The group closes them with itself.

    Raises:
        ConfigError: there is no model, one of them is no wrapper, two names have the same one, or a name is that of an
            argument of `submit()`.
    """

    def __init__(self, **models: ImageModel[Any]) -> None:
        if not models:
            raise ConfigError("a ModelGroup has one model or more: ModelGroup(detector=..., pose=...)")
        for name, model in models.items():
            if not isinstance(model, (VisionModel, Composed, OCR)):
                raise ConfigError(f"{name} is a wrapper of infersdk.models, not {type(model).__name__}")
        if taken := sorted({"image", "images", "timeout", "deadline", "in_flight"} & models.keys()):
            raise ConfigError(f"{taken[0]!r} is an argument of submit() or map(); give the model another name")
        if len({id(model) for model in models.values()}) < len(models):
            raise ConfigError("two names of the group have the same model; give each its own, by model.clone()")
        self.models: dict[str, ImageModel[Any]] = dict(models)
        self._pools = UploadPools()

    # ---- requests ----

    def __call__(self, image: ImageSource | HostImage, **parameters: Mapping[str, Any]) -> GroupResult:
        """The results for one image. Arguments and errors: see `submit()`."""
        self._check(parameters)
        return self._future(image, parameters, None).result()

    def submit(
        self,
        image: ImageSource | HostImage,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        **parameters: Mapping[str, Any],
    ) -> Future[GroupResult]:
        """One image for all models. The future ends when the last of them has its result; errors of models are in the
        `GroupResult`. `cancel()` cancels the requests whose batches have not left.

        Args:
            image: what `read_image()` takes; on a GPU also arrays that lie there.
            timeout, deadline: of each model's request; see `Pipeline.submit()`.
            parameters: by the name of a model, settings of this request: `detector={"conf": 0.5}`.

        Raises:
            ConfigError: parameters name a model that the group does not have.
        """
        self._check(parameters)
        return self._future(image, parameters, None, timeout=timeout, deadline=deadline)

    def _future(
        self,
        image: ImageSource | HostImage,
        parameters: Mapping[str, Mapping[str, Any]],
        wait: bool | None,
        **limits: float | None,
    ) -> Future[GroupResult]:
        """A request of an image to each model. See `Pipeline.submit_batch()`."""
        shared = self._shared(image)
        future = RequestFuture()
        future.request = request = _GroupRequest(tuple(self.models), future.end)
        for name, model in self.models.items():
            ended = partial(request.ended, name)
            try:
                request.requests += model.submit_batch([shared], ended, parameters.get(name), wait=wait, **limits)
            except Exception as error:  # no slot is free, or the model is closed: the others run
                request.ended(name, 0, error)
        return future

    def map(
        self,
        images: Iterable[ImageSource | HostImage],
        *,
        in_flight: int | None = None,
        **parameters: Mapping[str, Any],
    ) -> Iterator[GroupResult]:
        """The results of any number of images, in order; they may be endless. Always waits for slots.

        Args:
            in_flight: images that are read ahead of the result that is returned; None is as many as the largest
                pipeline of the models has slots.
            parameters: see `submit()`.

        Raises:
            ConfigError: `in_flight` is less than 1, or parameters name a model that the group does not have.
        """
        self._check(parameters)
        if in_flight is None:
            in_flight = max(model.details.pipelines[0].slots for model in self.models.values())
        return map_requests(images, lambda image: self._future(image, parameters, True), in_flight)

    async def infer(
        self, image: ImageSource | HostImage, *, deadline: float | None = None, **parameters: Mapping[str, Any]
    ) -> GroupResult:
        """From asyncio: the results for one image. Waiting for a slot blocks no thread."""
        self._check(parameters)
        shared = self._shared(image)
        done = await asyncio.gather(
            *(
                model.infer(shared, deadline=deadline, **parameters.get(name, {}))
                for name, model in self.models.items()
            ),
            return_exceptions=True,
        )
        ended = dict(zip(self.models, done, strict=True))
        errors = {name: one for name, one in ended.items() if isinstance(one, BaseException)}
        return GroupResult(tuple(ended), {name: one for name, one in ended.items() if name not in errors}, errors)

    def warm_up(self) -> None:
        """Runs batches of all sizes of each model; see `Pipeline.warm_up()`."""
        for model in self.models.values():
            model.warm_up()

    # ---- the rest ----

    def close(self) -> None:
        """Closes the models. Requests whose batches have not left are cancelled."""
        for model in self.models.values():
            model.close()
        self._pools.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(f'{name}={model!r}' for name, model in self.models.items())}>"

    def _shared(self, image: Any) -> Any:
        return image if DeviceImage.is_one(image) else SharedImage(image, self._pools)

    def _check(self, parameters: Mapping[str, Any]) -> None:
        for name, own in parameters.items():
            if name not in self.models or not isinstance(own, Mapping):
                raise ConfigError(
                    f"{name}={own!r}: settings of a request are a mapping by the name of a model, of "
                    f"{', '.join(self.models)}: {next(iter(self.models))}={{'conf': 0.5}}"
                )


class _GroupRequest:
    """The requests of an image to all models: it ends when the last of them has ended.

    Args:
        names: of the models.
        on_done: called with the result, or with the error of a model if all were cancelled or closed.

    Attributes:
        requests: those of the models.
    """

    def __init__(self, names: tuple[str, ...], on_done: Callable[[Any], object]) -> None:
        self._names, self._on_done = names, on_done
        self._lock = Lock()
        self._outcomes: dict[str, Any] = {}
        self.requests: list[CancellableRequest] = []

    def ended(self, name: str, _: int, outcome: Any) -> None:
        """A model has ended. Only the first time counts: a pipeline that fails may end a request that it refuses."""
        with self._lock:
            if name in self._outcomes:
                return
            self._outcomes[name] = outcome
            if len(self._outcomes) < len(self._names):
                return
        errors = {name: one for name, one in self._outcomes.items() if isinstance(one, BaseException)}
        taken_back = [name for name, one in errors.items() if isinstance(one, (CancelledError, ClosedError))]
        if len(taken_back) == len(self._names):
            self._on_done(outcome)
            return
        results = {name: one for name, one in self._outcomes.items() if name not in errors}
        self._on_done(GroupResult(self._names, results, errors))

    def cancel(self) -> bool:
        """Cancels the request of each model whose batch has not left. True if no model runs the image."""
        cancelled = [request.cancel() for request in list(self.requests)]
        return all(cancelled) and len(cancelled) == len(self._names)
