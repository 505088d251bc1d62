"""Calls of a wrapper: with one image, with a list of them, with a stream."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..errors import ClosedError
from ..image import HostImage, ImageSource
from ..pipeline.warm_up import sizes_to_run
from .execution import BatchItem, Executor, ExecutorPool, Lease, ModelStages, Parameters, Timings
from .grouping import Grouped
from .image_calls import ImageCalls
from .read_ahead import read_ahead
from .results import ClassMap, ClassMaps, Detections

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import DeviceImage
    from ..image.nvimgcodec import EncodedImage
    from ..infer import Infer
    from ..options import Progress
    from .preprocessor import ImageInput
    from .releasing import IdleRelease

__all__ = ["Calls"]

Result = TypeVar("Result")

#: Results that know their image, for drawing, in a notebook for instance.
_REMEMBERING = (Detections, ClassMap, ClassMaps)


class Calls(ImageCalls[Result]):
    """What a wrapper offers beside requests: calls that wait for their results, and streams.

    Where an image cannot be read, nothing is run for any of its batch.
    """

    network: Infer
    timings: Timings
    _input: ImageInput
    _limit: int  # images in a batch
    _stages: ModelStages[Result]
    _executors: ExecutorPool[Result]
    _idle: IdleRelease

    @property
    def batch_limit(self) -> int:
        """The most images in one run."""
        return self._limit

    @abstractmethod
    def _check_parameters(self, parameters: Parameters) -> None:
        """Raises ConfigError for parameters that a call cannot have."""

    def stream(
        self, images: Iterable[ImageSource | HostImage], *, return_exceptions: bool = False, **parameters: Any
    ) -> Iterator[Result]:
        """The results of any number of images, in order, a batch at a time.

        Files and encoded bytes are decoded on all processors, a batch at a time; for a GPU while it works on other
        batches, so that a batch and an image for each processor are read ahead. With `canvas="fit"` three batches at
        most are read ahead, so that images of one canvas go together.

        Args:
            return_exceptions: return the exception of an image in place of its result, as `map()` does, through which
                the images go then.
        """
        self._check_parameters(parameters)
        if return_exceptions:
            return self.map(images, return_exceptions=True, **parameters)  # type: ignore[attr-defined, no-any-return]
        return self._stream(iter(images), parameters or None)

    def _stream(self, images: Iterator[ImageSource | HostImage], parameters: Parameters) -> Iterator[Result]:
        with self._idle:
            yield from self._stream_in_use(images, parameters)

    def _stream_in_use(self, images: Iterator[ImageSource | HostImage], parameters: Parameters) -> Iterator[Result]:
        lease = self._executors.lease(stream=True)
        run: Any = None
        try:
            grouped = self._grouped(images, parameters, lease)
            batches = grouped.batches()
            exhausted = False

            def until_swapped() -> Iterator[list[BatchItem]]:
                nonlocal exhausted
                while not lease.following.is_outdated:
                    batch = _read(batches, lease)
                    if batch is None:
                        exhausted = True
                        return
                    yield batch

            while not exhausted:
                lease.executor = lease.following.current()
                run = lease.executor.stream(until_swapped())
                for results in run:
                    lease.pause()  # the caller may take any time
                    yield from grouped.in_order(results)
                    lease.resume()
        except GeneratorExit:
            with contextlib.suppress(ClosedError):  # then its batches have ended
                lease.resume()
                run.close()
            raise
        finally:
            lease.end()

    def _warm_up_calls(self, progress: Progress | None, example: ImageSource | HostImage | None) -> None:
        """Runs batches of all sizes on all canvases, as calls do."""
        lease = self._executors.lease()
        try:
            self._warm_up(lease.executor, progress, example)
        finally:
            lease.end()

    def _warm_up(
        self, executor: Executor[Result], progress: Progress | None, example: ImageSource | HostImage | None
    ) -> None:
        canvases = self._stages.canvases
        image = HostImage(np.full((64, 64, 3), 114, np.uint8), "bgr") if example is None else example
        sizes = sizes_to_run(executor.infer.batch_sizes(executor.capacity), executor.capacity)
        for canvas in reversed(canvases.sizes):
            for size in sizes:
                if progress is not None:
                    progress(f"Warming up calls: batch {size}, {canvas[0]} x {canvas[1]}", 0.0)
                executor.warm_up(size, canvas, image)

    def network_inputs(
        self, images: Iterable[ImageSource | HostImage], *, batch: int | None = None
    ) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """What the network is given for these images, a batch at a time: `{input: array}`. Nothing is run.

        Args:
            images: on the host, as a call takes them.
            batch: the most images in a batch. A model of a fixed batch keeps to its own, and the last batch is filled
                up with its last image.
        """
        self.network.current()  # a closed one raises
        free = self._input.has_free_batch
        limit = min(batch or self._limit, self._limit) if free else self._limit
        group: list[HostImage] = []
        for source in images:
            group.append(self._stages.preprocessor.read(source))
            if len(group) == limit:
                yield {self._input.spec.name: self._stages.preprocessor.array(group)}
                group.clear()
        if group:
            rows = None if free else limit
            yield {self._input.spec.name: self._stages.preprocessor.array(group, rows)}

    def _run_all(self, sources: Sequence[ImageSource | HostImage], parameters: Mapping[str, Any]) -> list[Result]:
        if parameters:
            self._check_parameters(parameters)
        if len(sources) == 1:  # nothing to group: 20 us less
            return [self._run_one(sources[0], parameters)]
        with self._idle:
            start = perf_counter()
            lease = self._executors.lease()
            try:
                executor = lease.executor
                executor.timings = timings = Timings()
                results = executor.run_arrays(sources, parameters or None)
                if results is None:
                    results = []
                    grouped = self._grouped(iter(sources), parameters or None, lease)
                    for done in executor.stream(grouped.batches()):
                        results += grouped.in_order(done)
            finally:
                lease.end()
            for source, result in zip(sources, results, strict=True):
                if isinstance(result, _REMEMBERING):
                    result._remember_image(source)
            timings.read = max(perf_counter() - start - timings.total, 0.0)
        self.timings = timings
        return results

    def _run_one(self, source: ImageSource | HostImage, parameters: Mapping[str, Any]) -> Result:
        if parameters:
            self._check_parameters(parameters)
        with self._idle:
            start = perf_counter()
            lease = self._executors.lease()
            try:
                lease.executor.timings = timings = Timings()
                result = lease.executor.run_one(source, parameters or None)
            finally:
                lease.end()
            if isinstance(result, _REMEMBERING):
                result._remember_image(source)
            others = timings.preprocess + timings.infer + timings.postprocess
            timings.read = max(perf_counter() - start - others, 0.0)
        self.timings = timings
        return result

    def _grouped(
        self, sources: Iterator[ImageSource | HostImage], parameters: Parameters, lease: Lease[Result]
    ) -> Grouped[Result]:
        """The images in batches; those on a device and those on the host do not mix, nor do canvases."""
        canvases = self._stages.canvases

        def key(item: BatchItem) -> tuple[bool, Any]:
            canvas = canvases.of(item.image.size).input.size if canvases.several else None
            return isinstance(item.image, HostImage), canvas

        items = (BatchItem(image, parameters) for image in self._images(sources, lease))
        return Grouped(items, key, lambda: lease.executor.capacity)

    def _images(
        self, sources: Iterator[ImageSource | HostImage], lease: Lease[Result]
    ) -> Iterator[HostImage | DeviceImage | EncodedImage]:
        """The images, decoded on all processors."""

        def read(source: ImageSource | HostImage) -> HostImage | DeviceImage | EncodedImage:
            return lease.executor.read(source)

        return read_ahead(sources, read, self._limit, overlap=self.network.stream is not None)


def _read(batches: Iterator[list[BatchItem]], lease: Lease[Any]) -> list[BatchItem] | None:
    """The next batch. Its images may take any time to come, so the lease is paused meanwhile, unless another thread
    reads ahead for that of the lease.
    """
    if not lease.is_active_here:
        return next(batches, None)
    lease.pause()
    try:
        batch = next(batches, None)
    except BaseException:
        with contextlib.suppress(ClosedError):  # what came first is raised
            lease.resume()
        raise
    lease.resume()
    return batch
