"""Keys: 64 bits from (seed, purpose, numbers), different for each purpose.

Every random decision of the order and of the draws inside a sample starts from such a key. A key absorbs its parts one
after the other, so that seed 0, epoch 1 and seed 1, epoch 0 have nothing in common (their sums would be equal). The
finaliser is that of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
generators", OOPSLA 2014; constants of Stafford's variant 13).
"""

from operator import index

ORDER_VERSION = 1
"""Version of every rule that determines the sample of a position; part of every key and of every saved spec."""

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """SplitMix64 finaliser: a bijection of 64-bit integers in which every input bit reaches every output bit."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def make_key(seed: int, purpose: str, *numbers: int) -> int:
    """Make a 64-bit key for `purpose`, e.g. `make_key(seed, "clip", source, epoch)`.

    `seed` and `numbers` are integers in [0, 2^64). The purpose is absorbed as UTF-8, eight bytes at a time, behind its
    length, so that no two different (purpose, numbers) are the same sequence of words.

    Raises:
        ValueError: a seed or number outside that range.
    """
    text = purpose.encode()
    words = [ORDER_VERSION, check_seed(seed), len(text)]
    words += [int.from_bytes(text[i : i + 8], "little") for i in range(0, len(text), 8)]
    words.append(len(numbers))
    words += [check_seed(number) for number in numbers]
    state = 0
    for word in words:
        state = mix64((state + _GAMMA) ^ mix64(word + _GAMMA))
    return state


def check_seed(seed: int) -> int:
    """Seed as a plain int.

    Raises:
        ValueError: no integer in [0, 2^64).
    """
    try:
        value = index(seed)
    except TypeError:
        raise ValueError(f"seed {seed!r} is not an integer: give an int in [0, 2**64)") from None
    if not 0 <= value <= _MASK:
        raise ValueError(f"seed {value} is outside [0, 2**64): give a non-negative 64-bit integer")
    return value
