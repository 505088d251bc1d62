"""Several models on the same images."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ...image import DeviceImage, HostImage, ImageSource, SharedImage
from ...image.uploads import UploadPools
from ..ocr import OCR
from ..vision import VisionModel
from .base import Composed, map_requests
from .outcomes import Ended, EndedRequest
from .requests import beginner, submit_for

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..image_model import ImageModel

__all__ = ["GroupResult", "ModelGroup"]


class GroupResult(Mapping[str, Any]):
    """The results of the models of a group for one image, by name.

    `result["road"]` raises what the model raised, if it failed: the others have their results all the same.

    Attributes:
        errors: the exceptions of the models that failed, by name.
    """

    def __init__(self, names: tuple[str, ...], results: Mapping[str, Any], errors: Mapping[str, BaseException]) -> None:
        self._names, self._results, self.errors = names, dict(results), dict(errors)

    def __getitem__(self, name: str) -> Any:
        if name in self.errors:
            raise self.errors[name]
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:  # Mapping's asks for the result, which may raise
        return name in self._names

    def __repr__(self) -> str:
        parts = [f"{name}={self.errors.get(name, self._results.get(name))!r}" for name in self._names]
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
        return self._submit(image, parameters).result()

    def submit(
        self,
        image: ImageSource | HostImage,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        **parameters: Mapping[str, Any],
    ) -> Future[GroupResult]:
        """One image for all models. The future ends when the last of them has its result, and never in their errors:
        these are in the `GroupResult`. `cancel()` takes back what has not left yet.

        Args:
            image: what `read_image()` takes; on a GPU also arrays that lie there.
            timeout, deadline: of each model's request; see `Pipeline.submit()`.
            parameters: by the name of a model, settings of this request: `detector={"conf": 0.5}`.

        Raises:
            ConfigError: parameters name a model that the group does not have.
        """
        self._check(parameters)
        return self._submit(image, parameters, timeout=timeout, deadline=deadline)

    def _submit(
        self, image: ImageSource | HostImage, parameters: Mapping[str, Mapping[str, Any]], **limits: float | None
    ) -> Future[GroupResult]:
        shared = self._shared(image)
        future = _GroupFuture(tuple(self.models))
        for name, model in self.models.items():
            try:
                future.add(
                    name, submit_for(model, partial(future.ended, name), shared, parameters.get(name, {}), limits)
                )
            except Exception as error:  # no slot is free, or the model is closed: the others run
                future.ended(name, Ended(error))
        return future

    def map(
        self,
        images: Iterable[ImageSource | HostImage],
        *,
        in_flight: int | None = None,
        **parameters: Mapping[str, Any],
    ) -> Iterator[GroupResult]:
        """The results of any number of images, in order; they may be endless. Waits for slots, whatever `submit()` does
        when all are taken.

        Args:
            in_flight: images that are read ahead of the result that is returned; None is as many as the largest
                pipeline of the models has slots.
            parameters: see `submit()`.

        Raises:
            ConfigError: `in_flight` is less than 1, or parameters name a model that the group does not have.
        """
        self._check(parameters)
        ahead = max(model.pipelines[0].slots for model in self.models.values()) if in_flight is None else in_flight
        caller = _MapCaller(self.models, parameters)
        return map_requests(images, lambda image: caller.begin(self._shared(image)), ahead)

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
        """Closes the models. What has not left yet is cancelled."""
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


class _MapCaller:
    """The thread of a `map()`, which alone waits for the results of its images, in order."""

    def __init__(self, models: Mapping[str, ImageModel[Any]], parameters: Mapping[str, Mapping[str, Any]]) -> None:
        self._names = tuple(models)
        self._begin = {name: beginner(model, parameters.get(name, {})) for name, model in models.items()}
        # The model that ends last comes first: then the thread sleeps once for an image.
        self._order = list(models)

    def begin(self, image: Any) -> _MapImage:
        """Takes an image in for all models."""
        requests: dict[str, EndedRequest] = {}
        for name, begin in self._begin.items():
            try:
                requests[name] = begin(image)
            except Exception as error:  # the model is closed: the others run
                requests[name] = Ended(error)
        return _MapImage(self, requests)

    def wait(self, requests: Mapping[str, EndedRequest]) -> GroupResult:
        """The results of an image, once all models have ended it."""
        last = None
        for name in self._order:
            if not requests[name].ended:
                requests[name].wait_for_end()
                last = name
        if last is not None and last is not self._order[0]:
            self._order.remove(last)
            self._order.insert(0, last)
        return _joined(self._names, requests)


class _MapImage:
    """An image on its way through all models. It is what `map_requests()` takes for a future."""

    __slots__ = ("_caller", "_requests")

    def __init__(self, caller: _MapCaller, requests: Mapping[str, EndedRequest]) -> None:
        self._caller, self._requests = caller, requests

    def result(self) -> GroupResult:
        return self._caller.wait(self._requests)

    def cancel(self) -> bool:
        cancelled = [request.cancel() for request in self._requests.values()]
        return all(cancelled)


class _GroupFuture(Future[GroupResult]):
    """The future of an image: it ends when the requests of all models have."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self._names, self._lock = names, Lock()
        self._requests: dict[str, Any] = {}
        self._ends: dict[str, EndedRequest] = {}
        self._open = set(names)  # that have not ended

    def add(self, name: str, request: Any) -> None:
        """The request of a model, for `cancel()`. It may have ended."""
        self._requests[name] = request

    def ended(self, name: str, request: EndedRequest) -> None:
        """The request of a model has ended."""
        with self._lock:
            if name not in self._open:
                return  # a pipeline that fails ends the request that it refuses
            self._open.remove(name)
            self._ends[name] = request
            if self._open:
                return
        ends, self._ends, self._requests = self._ends, {}, {}
        try:
            result = _joined(self._names, ends)
        except CancelledError:
            super().cancel()
            self.set_running_or_notify_cancel()
            return
        self.set_result(result)

    def cancel(self) -> bool:
        """Takes the image back from each model whose batch has not left; whether none of them runs it."""
        if self.done():
            return self.cancelled()
        cancelled = [request.cancel() for request in list(self._requests.values())]
        return all(cancelled) and len(cancelled) == len(self._names)


def _joined(names: tuple[str, ...], ends: Mapping[str, EndedRequest]) -> GroupResult:
    """What the models gave for an image. Raises CancelledError if all of them were cancelled."""
    errors = {name: error for name in names if (error := ends[name].error) is not None}
    if len(errors) == len(names) and all(isinstance(error, CancelledError) for error in errors.values()):
        raise CancelledError
    return GroupResult(names, {name: ends[name].result for name in names if name not in errors}, errors)
