"""Ray: a configuration's model in `ray.data`'s `map_batches`, and as a deployment of Ray Serve.

::

    rows = ray.data.read_binary_files("s3://bucket/images/")
    found = rows.map_batches(
        ImageBatches,
        fn_constructor_kwargs={"config": "app.toml", "model": "detector"},
        batch_size=64, concurrency=4, num_gpus=1,
    )

    serve.run(deployment("app.toml", "detector", ray_actor_options={"num_gpus": 1}))

Both run the wrapper's own pipeline: images are decoded and preprocessed on threads, and batched as the model was
loaded. `@serve.batch` is not needed. This module needs Ray: `pip install "infersdk[ray]"`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import model_table, read
from ..errors import BackendUnavailableError, ConfigError, ImageError
from ..models import create
from ..models.results.plain import plain_rows
from ..serve.errors import as_request_error
from ..serve.repository import newest_table

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..models import ImageModel

__all__ = ["ImageBatches", "deployment"]

_Config = str | os.PathLike[str] | Mapping[str, Any]


def _load(config: _Config, model: str) -> ImageModel[Any]:
    """One model of a configuration, warmed up; of one with versions the newest. The others are not loaded."""
    _, table = newest_table(model, model_table(read(config), model))
    loaded = create({"models": {model: table}})[model]
    try:
        loaded.warm_up()
    except BaseException:
        loaded.close()
        raise
    return loaded


class ImageBatches:
    """An actor class for `Dataset.map_batches`: batches with images in, the same batches with a column of results out.

    An image that cannot be read does not end the job: its result is empty, and `error` says why. Each other error, such
    as that of a device or of a setting, is raised.

    Args:
        config: a file that each node can read, or a mapping.
        model: the name of its table.
        column: the column with the images: encoded bytes, paths, or arrays; `"bytes"` is what `read_binary_files()`
            gives, `"image"` what `read_images()` gives (it decodes to RGB: set `channel_order = "rgb"` then).
        output: the column for the results: for each image a list of dicts, as `to_dicts()` has them.
        parameters: settings for all of the images, such as `conf=0.5`.
    """

    def __init__(
        self,
        config: _Config,
        model: str,
        column: str = "bytes",
        output: str = "results",
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = _load(config, model)
        self._column, self._output, self._parameters = column, output, dict(parameters or {})

    def __call__(self, batch: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
        """A batch as Ray Data gives it in its format `"numpy"`."""
        if self._column not in batch:
            raise ConfigError(f"the dataset has no column {self._column!r}; it has {', '.join(batch)}")
        images = [_image(value) for value in batch[self._column]]
        results = list(self._model.map(images, return_exceptions=True, **self._parameters))
        for one in results:
            if isinstance(one, Exception) and not isinstance(one, ImageError):
                raise one
        failed = [str(one) if isinstance(one, Exception) else "" for one in results]
        rows = np.empty(len(results), np.object_)
        rows[:] = [[] if error else plain_rows(one) for one, error in zip(results, failed, strict=True)]
        return {**batch, self._output: rows, "error": np.array(failed, dtype=object)}


def _image(value: Any) -> Any:
    """Bytes, a path or an array; NumPy's own text and bytes become Python's."""
    return value.item() if isinstance(value, np.generic) else value


def deployment(config: _Config, model: str, **options: Any) -> Any:
    """An application of Ray Serve with one model of a configuration.

    Its handle takes an image (`await handle.remote(data)`) and returns the rows of its result. Over HTTP the body is
    the image; a request that fails is answered by `{"error": TEXT}`, with the status codes of `infersdk serve`.

    Args:
        options: of the deployment: `num_replicas`, `ray_actor_options`, `max_ongoing_requests`, ...

    Raises:
        BackendUnavailableError: Ray Serve is not installed.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise BackendUnavailableError(f'Ray Serve is missing ({error}): pip install "infersdk[ray]"') from None
    return serve.deployment(**{"max_ongoing_requests": 256, **options})(_Replica).bind(config, model)


class _Replica:
    """One replica of a deployment."""

    def __init__(self, config: _Config, model: str) -> None:
        self._model = _load(config, model)

    async def __call__(self, request: Any) -> Any:
        """The rows of an image, as dicts; of an HTTP request, whose body is the image."""
        over_http = hasattr(request, "body")
        image = await request.body() if over_http else request
        if isinstance(image, (str, os.PathLike)):
            raise ConfigError(
                f"an image is bytes or an array here, not a {type(image).__name__}; a Path or text would be opened as a"
                " path on the server"
            )
        try:
            return plain_rows(await self._model.infer(image))
        except Exception as error:
            if not over_http:
                raise
            from fastapi.responses import JSONResponse

            refused = as_request_error(error)
            return JSONResponse({"error": refused.message}, refused.status.http, dict(refused.headers))
