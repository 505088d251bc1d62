"""Changes to files, drawn from a generator: the same generator makes the same file."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

__all__ = ["mutate", "mutate_text"]

_NUMBERS = (0, 1, -1, 2, 7, 127, 128, 255, 256, 32767, 65535, 65536, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**63 - 1)


def mutate(rng: random.Random, data: bytes, others: Sequence[bytes] = (), limit: int = 1 << 16) -> bytes:
    """One to six changes of bytes: bits, numbers, cuts, repeats, noise, and pieces of other files."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(10):
            case 0:
                del out[at:]
            case 1:
                del out[at : at + rng.randint(1, 16)]
            case 2:
                out[at:at] = rng.randbytes(rng.randint(1, 16))
            case 3:
                piece = out[at : at + rng.randint(1, 64)]
                out[at:at] = piece * rng.randint(1, 20)
            case 4 if others:
                other = rng.choice(others)
                begin = rng.randrange(len(other) + 1)
                out[at:] = other[begin:]
            case 5:
                form = rng.choice(("<b", "<h", ">h", "<i", ">i", "<q", ">q", "<f", "<d"))
                number = rng.choice(_NUMBERS)
                try:
                    packed = struct.pack(form, number)
                except struct.error:
                    packed = struct.pack("<Q", number % 2**64)[: struct.calcsize(form)]
                out[at : at + len(packed)] = packed
            case 6:
                for _ in range(rng.randint(1, 8)):
                    if out:
                        out[rng.randrange(len(out))] = rng.randrange(256)
            case 7:
                if len(out) > 1:
                    out[:] = out[at:] + out[:at]
            case _:
                if out:
                    out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
        del out[limit:]
    return bytes(out)


def mutate_text(rng: random.Random, text: bytes, tokens: Sequence[str], others: Sequence[bytes] = ()) -> bytes:
    """Changes of a text: those of bytes, or tokens of its language put in, doubled, swapped, nested and taken out."""
    if rng.random() < 0.2:
        return mutate(rng, text, others)
    out = text.decode("utf-8", "surrogateescape")
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(out) + 1)
        token = rng.choice(tokens)
        match rng.randrange(6):
            case 0:
                out = out[:at] + token + out[at:]
            case 1:
                out = out[:at] + token * rng.choice((2, 3, 50, 2000)) + out[at:]
            case 2:
                end = min(len(out), at + rng.randint(1, 30))
                out = out[:at] + token + out[end:]
            case 3:
                lines = out.splitlines(keepends=True)
                rng.shuffle(lines)
                out = "".join(lines)
            case 4:
                lines = out.splitlines(keepends=True)
                if lines:
                    line = rng.choice(lines)
                    out += line * rng.randint(1, 5)
            case _:
                out = out[:at] + out[at + rng.randint(1, 40) :]
        out = out[: 1 << 17]
    return out.encode("utf-8", "surrogateescape")
