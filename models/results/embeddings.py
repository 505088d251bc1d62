"""The result of an embedding model: a vector that is near to those of images like it; and a gallery to look them up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...core.tensor_spec import as_numbers
from ...errors import InputError, ShapeError
from .agreement import Agreement
from .indices import row_number
from .result import Result, ResultTensor

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self

__all__ = ["Embedding", "Gallery", "Match"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Embedding(Result):
    """A vector of length 1.

    Attributes:
        vector: float32 (D,), L2-normalised.
        norm: its length before that; some networks give longer vectors for clearer images.
    """

    vector: npt.NDArray[np.float32]
    norm: float

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Embedding:
        """The embedding of a network's output, (D,).

        Raises:
            ShapeError: it is not a vector.
            InputError: these are not numbers; or its length is 0 or not finite, so that it has no direction.
        """
        try:
            vector = as_numbers("values", values, np.float32)
        except InputError:
            raise InputError(
                f"an embedding is a vector of numbers, not {values!r:.80}; give the result of a model"
            ) from None
        if vector.ndim != 1:
            raise ShapeError(f"an embedding is a vector, and these values have shape {vector.shape}")
        return cls.of_rows(vector[None])[0]

    @classmethod
    def of_rows(cls, rows: npt.NDArray[Any]) -> list[Embedding]:
        """The embeddings of a batch, (N, D). Raises InputError as `of()` does."""
        vectors = np.asarray(rows, np.float32)
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
        lengths: list[float] = norms.tolist()
        for norm in lengths:
            if not (norm > 0 and math.isfinite(norm)):
                raise InputError(f"the vector has a length of {norm}, and no direction; did the network get an image?")
        vectors = (vectors / norms[:, None]).astype(np.float32)
        # Copies: one result that is kept does not keep the others.
        return [cls(vector.copy(), norm) for vector, norm in zip(vectors, lengths, strict=True)]

    def cosine(self, other: Embedding | npt.ArrayLike) -> float:
        """The cosine of the angle to another one, -1 to 1: the higher, the more alike.

        Raises:
            ShapeError: the other one has another number of dimensions.
        """
        vector = other.vector if isinstance(other, Embedding) else Embedding.of(other).vector
        if vector.shape != self.vector.shape:
            raise ShapeError(f"this embedding has {len(self)} dimensions, the other one {len(vector)}")
        return float(np.clip(self.vector @ vector, -1, 1))

    def __len__(self) -> int:
        return len(self.vector)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.vector, dtype) if copy else np.asarray(self.vector, dtype)

    def to_list(self) -> list[float]:
        """The vector as plain Python floats."""
        values: list[float] = self.vector.tolist()
        return values

    def to_dict(self) -> dict[str, Any]:
        """`{"vector": [...], "norm": ...}`, as plain Python values."""
        return {"vector": self.to_list(), "norm": self.norm}

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict: see `to_dict()`."""
        return [self.to_dict()]

    def summary(self) -> str:
        """The dimensions and the first values."""
        first = ", ".join(f"{value:.3f}" for value in self.vector[:3])
        return f"{len(self)} dimensions  {first}{', ...' if len(self) > 3 else ''}"

    def _tensors(self) -> Mapping[str, ResultTensor]:
        return {"embedding": ResultTensor(lambda: self.vector)}

    def _agreement(self, other: Self, min_score: float) -> Agreement:
        """The cosine; 0 where it is negative."""
        return Agreement.of(max(self.cosine(other), 0.0), 1.0)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"


class Match(NamedTuple):
    """One of the nearest entries of a gallery."""

    label: str
    """The label that it was added with."""
    cosine: float
    """How alike it is, -1 to 1."""
    number: int
    """Its place in the gallery, from 0 in the order in which entries were added."""


class Gallery:
    """Embeddings with labels, to find the nearest ones in. Several threads may use it at once.

    ::

        gallery = Gallery({"ann": embed("ann.jpg"), "bob": embed("bob.jpg")})
        match = gallery.nearest(embed(frame), at_least=0.6)
        print(match.label if match else "unknown")

    Args:
        entries: labels and embeddings to begin with: a mapping, or pairs where labels repeat.
    """

    def __init__(self, entries: Iterable[tuple[str, Embedding]] | Mapping[str, Embedding] = ()) -> None:
        self._lock = Lock()
        self._labels: list[str] = []
        self._vectors: list[npt.NDArray[np.float32]] = []
        self._matrix: npt.NDArray[np.float32] | None = None  # all vectors; None after an entry was added
        for label, embedding in entries.items() if isinstance(entries, Mapping) else entries:
            self.add(label, embedding)

    @property
    def labels(self) -> list[str]:
        """The label of each entry."""
        with self._lock:
            return list(self._labels)

    def __len__(self) -> int:
        return len(self._labels)

    def add(self, label: str, embedding: Embedding | npt.ArrayLike) -> None:
        """Adds an entry; a label may have several.

        Raises:
            ShapeError: the embedding has another number of dimensions than those that are there.
            InputError: it is not made of numbers, or has no direction.
        """
        with self._lock:
            self._vectors.append(self._vector(embedding).copy())
            self._labels.append(label)
            self._matrix = None

    def _vector(self, embedding: Embedding | npt.ArrayLike) -> npt.NDArray[np.float32]:
        """The vector of an embedding; raises ShapeError where it has other dimensions than the entries."""
        vector = (embedding if isinstance(embedding, Embedding) else Embedding.of(embedding)).vector
        if self._vectors and self._vectors[0].shape != vector.shape:
            raise ShapeError(
                f"the gallery has embeddings of {len(self._vectors[0])} dimensions, and this one has {len(vector)}"
            )
        return vector

    def nearest(self, embedding: Embedding | npt.ArrayLike, *, at_least: float = -1.0) -> Match | None:
        """The entry that is most alike; None where the gallery is empty or none reaches `at_least`."""
        result = self.search(embedding, 1, at_least=at_least)
        return result[0] if result else None

    def search(self, embedding: Embedding | npt.ArrayLike, k: int = 5, *, at_least: float = -1.0) -> list[Match]:
        """The `k` entries that are most alike, best first, equal ones in the order in which they were added.

        Args:
            at_least: the cosine that a match has at least.

        Raises:
            ShapeError: the embedding has another number of dimensions than those of the gallery.
            InputError: `k` is not a whole number from 1, or `at_least` is no number.
        """
        if (row_number(k) or 0) < 1:
            raise InputError(f"k is {k!r}; it must be a whole number, 1 or more")
        if not isinstance(at_least, (float, Real)) or math.isnan(at_least):
            raise InputError(f"at_least is {at_least!r}; use a cosine, -1 to 1")
        with self._lock:
            vector, labels = self._vector(embedding), self._labels
            if not labels:
                return []
            if self._matrix is None:
                self._matrix = np.stack(self._vectors)
            matrix = self._matrix
        cosines = np.clip(matrix @ vector, -1, 1)
        best = np.argsort(-cosines, kind="stable")[:k]
        return [Match(labels[i], float(cosines[i]), int(i)) for i in best.tolist() if cosines[i] >= at_least]

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            entries = zip(self._labels, self._vectors, strict=True)
            return type(self), ([(label, Embedding(vector, 1.0)) for label, vector in entries],)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} embeddings of {len(set(self._labels))} labels>"
