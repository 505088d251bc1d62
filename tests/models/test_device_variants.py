"""Decoders on a device for requests with settings of their own, by a decoder that computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from infersdk.models.device_variants import MOST_DECODERS, DeviceDecoder, DeviceVariants


class Model:
    """A wrapper whose variants have a name."""

    def __init__(self, name: str = "own") -> None:
        self.name, self.variants = name, {}

    def _by_settings(self, parameters: Sequence[Any]) -> Iterator[tuple[Model, list[int]]]:
        for name in dict.fromkeys(parameters):
            model = self if name is None else self.variants.setdefault(name, Model(name))
            yield model, [row for row, other in enumerate(parameters) if other == name]


class Decoder(DeviceDecoder[Any]):
    made = closed = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        Decoder.made += 1

    def queue(self, geometries: Any) -> None:
        self.width = self._infer.outputs["boxes"].shape[1]

    def results(self, rows: Sequence[int], geometries: Any) -> Iterator[Any]:
        return ((self._model.name, row, geometries[row], self.width) for row in rows)

    def close(self) -> None:
        Decoder.closed += 1


def test_each_variant_has_a_decoder_for_each_shape() -> None:
    infer: Any = SimpleNamespace(outputs={"boxes": np.zeros((4, 8))})
    post: Any = DeviceVariants(Decoder, Model(), infer, 4, "boxes")  # type: ignore[type-var]

    def run(*parameters: Any) -> list[Any]:
        places = [f"place {row}" for row in range(len(parameters))]
        post.queue(places, parameters)
        results: list[Any] = post.collect(places, parameters)
        assert [result[1:3] for result in results] == list(enumerate(places))
        return [(name, width) for name, _, _, width in results]

    for _ in range(2):
        assert run(None, "low", None, "high") == [("own", 8), ("low", 8), ("own", 8), ("high", 8)]
    assert Decoder.made == 3
    infer.outputs["boxes"] = np.zeros((4, 6))  # another canvas
    assert run("low") == [("low", 6)]
    assert Decoder.made == 4
    for number in range(MOST_DECODERS):
        run(f"conf {number}")
    assert Decoder.closed > MOST_DECODERS // 2, "those of earlier requests are freed"
    assert Decoder.made - Decoder.closed <= MOST_DECODERS
    post.close()
    assert Decoder.made == Decoder.closed
