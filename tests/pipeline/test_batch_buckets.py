"""Backends that run a batch padded, to one size for a while or to a few: what requests get is theirs all the same."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from idle_backend import IdleInfer, Options

from infersdk import Pipeline
from infersdk.backends._batch_buckets import BatchBuckets, next_size
from infersdk.core.tensor_spec import TensorSpec
from infersdk.infer import Scheduling


class Sums(IdleInfer):
    """`s` is a + b, row by row; the batches that were run are kept."""

    def _load(self) -> None:
        self.input_specs = tuple(TensorSpec(name, np.dtype(np.float32), ("batch", 64)) for name in "ab")
        self.output_specs = (TensorSpec("s", np.dtype(np.float32), ("batch", 64)),)
        self.batches: list[int] = []
        self.scheduling = Scheduling(bucket_batch=partial(next_size, largest=self.max_batch))

    def _bind(self) -> None:
        self._outputs["s"].resize(self._inputs["a"].shape)

    def _enqueue(self) -> None:
        a, b = (self._inputs[name].numpy() for name in "ab")
        if a.shape != b.shape:
            raise RuntimeError(f"a batch of {len(a)} and one of {len(b)} in one run")
        self.batches.append(len(a))
        np.add(a, b, out=self._outputs["s"].numpy(writable=True))


def sums(folder: Path, max_batch: int) -> Sums:
    path = folder / "sums.model"
    path.write_bytes(b"sums")
    return Sums(path, max_batch=max_batch, options=Options())


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("capacity", [5, 8])
def test_requests_get_their_own(tmp_path: Path, steady: bool, capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchBuckets, "PATIENCE", 3)
    rng = np.random.default_rng(capacity)
    with sums(tmp_path, 32) as infer:
        if steady:
            sizes = partial(next_size, largest=32)
            infer.scheduling = Scheduling(bucket_batch=BatchBuckets(32).size_for, prepared_size=sizes)
            assert infer.scheduling.bucket_batch(20) == 24  # as another clone of it may have wanted
        with Pipeline(infer, max_batch=capacity, instances=3, max_delay=0.001) as pipeline:
            for _ in range(150):
                count = int(rng.integers(1, 12))
                given: list[Any] = [{name: rng.random(64, np.float32) for name in "ab"} for _ in range(count)]
                for x, future in zip(given, pipeline.submit_many(given), strict=True):
                    np.testing.assert_array_equal(future.result(30)["s"], x["a"] + x["b"])
        # Rows beyond those of a buffer would belong to no request.
        assert 1 <= min(infer.batches) <= max(infer.batches) <= capacity
