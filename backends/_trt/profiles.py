"""Optimisation profiles: the ranges of shapes of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...errors import ConfigError, UnsupportedModelError

if TYPE_CHECKING:
    from ...core.tensor_spec import TensorSpec
    from .options import Range

__all__ = ["Profile", "fits", "make_profile", "make_profiles"]

#: By the name of an input: the smallest shape, the one to tune for, the largest.
Profile = dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


def make_profiles(
    specs: Sequence[TensorSpec],
    max_batch: int | None,
    given: Mapping[str, Range | Sequence[Range]],
    batches: Sequence[int] | None,
) -> list[Profile]:
    """The profiles to build, in the order in which they are tried.

    Args:
        given: ranges by the name of an input, from the user, or lists of ranges.
        batches: sizes with their own profiles, which the runtime tunes better than a range. None is the smallest and
            the largest, if only the batch is free and nothing is `given`.

    Raises:
        ConfigError, UnsupportedModelError: as `make_profile()`; or a size of `batches` is outside the range; or lists
            of inputs differ in length. ConfigError, too, if the largest batch of an input's ranges is not `max_batch`.
    """
    several = {name: ranges for name, ranges in given.items() if isinstance(ranges, Sequence)}
    single = {name: ranges for name, ranges in given.items() if not isinstance(ranges, Sequence)}
    counts = {name: len(ranges) for name, ranges in several.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise ConfigError(f"profiles: inputs have {counts} ranges; give each input of a list as many, one at least")
    if not several and single and batches is None:
        batches = []
    sets = [{**single, **dict(zip(several, ranges, strict=True))} for ranges in zip(*several.values(), strict=True)]
    profiles = [profile for one in sets or [single] for profile in _profiles_of(specs, max_batch, one, batches)]
    for spec in specs:
        if max_batch is None or spec.name not in given or not spec.has_free_batch:
            continue
        if (largest := max(profile[spec.name][2][0] for profile in profiles)) != max_batch:
            raise ConfigError(
                f"max_batch={max_batch}, but profiles has a largest batch of {largest} for input {spec.name!r}; make "
                "them the same, or leave max_batch out"
            )
    return profiles


def _profiles_of(
    specs: Sequence[TensorSpec], max_batch: int | None, given: Mapping[str, Range], batches: Sequence[int] | None
) -> list[Profile]:
    """The profiles of one range for each input."""
    whole = make_profile(specs, max_batch, given)
    if not whole:
        return []
    free = {spec.name for spec in specs if spec.has_free_batch} & set(whole)
    fixed = all(low[1:] == high[1:] for low, _, high in whole.values()) and free == set(whole)
    lows, highs = {whole[name][0][0] for name in free}, {whole[name][2][0] for name in free}
    if not fixed or len(lows) != 1 or len(highs) != 1:
        if batches:
            raise ConfigError(f"exact_batches={list(batches)}: other dimensions than the batch are free in {whole}")
        return [whole]
    low, high = lows.pop(), highs.pop()
    wanted = (high, low) if batches is None else tuple(batches)
    if outside := [size for size in wanted if not low <= size <= high]:
        raise ConfigError(f"exact_batches={list(wanted)}: {outside[0]} is not within the range of {low} to {high}")
    exact = [
        {name: ((size, *shapes[0][1:]),) * 3 for name, shapes in whole.items()}
        for size in dict.fromkeys(wanted)
        if low < high
    ]
    return [*exact, whole]


def make_profile(specs: Sequence[TensorSpec], max_batch: int | None, given: Mapping[str, Range]) -> Profile:
    """The profile of a model with the inputs `specs`; empty if all their dimensions are fixed.

    Args:
        max_batch: the largest batch, for inputs that leave it free; None is 1.
        given: ranges by the name of an input, from the user.

    Raises:
        ConfigError: a range has another form or does not fit its input, or is for an unknown input.
        UnsupportedModelError: dimensions other than the batch are free and have no range.
    """
    names = [spec.name for spec in specs]
    for name in given:
        if name not in names:
            raise ConfigError(f"profiles: the model has no input {name!r}; its inputs are {names}")
    profile: Profile = {}
    for spec in specs:
        if spec.name in given:
            profile[spec.name] = _checked(spec, given[spec.name])
        elif spec.is_dynamic:
            profile[spec.name] = _by_batch(spec, max_batch or 1)
    return profile


def _by_batch(spec: TensorSpec, max_batch: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    rest = [d for d in spec.shape[1:] if isinstance(d, int)]
    if len(rest) != len(spec.shape) - 1:
        dims = ", ".join("..." if d is None else str(d) for d in spec.shape)
        example = ", ".join(str(d) if isinstance(d, int) else "1" for d in spec.shape)
        raise UnsupportedModelError(
            f"input {spec.name!r} is ({dims}): dimensions other than the batch are free, and an engine is built for "
            "a range of shapes; give it as profiles="
            f'{{"{spec.name}": {{"min": [{example}], "opt": [...], "max": [...]}}}}'
        )
    return (1, *rest), (max_batch, *rest), (max_batch, *rest)


def _checked(spec: TensorSpec, given: Range) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    shapes = tuple(given.min), tuple(given.opt), tuple(given.max)
    text = f"profiles: input {spec.name!r} is {spec.text}"
    for which, shape in zip(("min", "opt", "max"), shapes, strict=True):
        if len(shape) != len(spec.shape):
            raise ConfigError(f"{text}, so {which} has {len(spec.shape)} dimensions, not {list(shape)}")
        for axis, (want, got) in enumerate(zip(spec.shape, shape, strict=True)):
            if isinstance(want, int) and want != got:
                raise ConfigError(f"{text}: dimension {axis} of {which} is {want}, not {got}")
    for axis, (low, opt, high) in enumerate(zip(*shapes, strict=True)):
        if not low <= opt <= high:
            raise ConfigError(f"{text}: dimension {axis} goes min {low}, opt {opt}, max {high}, which is no range")
    return shapes


def fits(profile: Profile, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the profile takes these shapes of inputs."""
    return all(
        name not in profile
        or all(low <= d <= high for low, d, high in zip(profile[name][0], shape, profile[name][2], strict=True))
        for name, shape in shapes.items()
    )
