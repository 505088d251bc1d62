"""What Python's garbage collector does in a process that serves and does nothing else."""

from __future__ import annotations

import gc

__all__ = ["freeze"]


def freeze() -> None:
    """Frees what is not referred to any more, and leaves all other objects out of later collections.

    A full collection looks at each object while all threads stand still: some 30 ms for the packages and the models of
    a server, which stay anyway. Called again, it looks at all objects once more: those of a model that is closed since
    are freed.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
