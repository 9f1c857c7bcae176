"""Checks of constructor arguments: whole numbers, probabilities, names of options. `name` is the argument's name."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral

from headwise.errors import ArgumentError


def whole(name: str, value: object, least: int = 1) -> int:
    """Return `value` as an int if it is an integer (NumPy's too) and at least `least`; else raise ArgumentError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ArgumentError(f"{name}: expected a whole number of at least {least}. Received: {name}={value!r}")
    return int(value)


def positive(name: str, value: float) -> float:
    """Return `value` if it is a finite number above 0; else raise ArgumentError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value < float("inf"):
        raise ArgumentError(f"{name}: expected a finite number above 0. Received: {name}={value!r}")
    return value


def probability(name: str, value: object) -> float:
    """Return `value` as a float if it is a number in [0, 1); else raise ArgumentError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1.0:
        raise ArgumentError(f"{name}: expected a probability in [0, 1). Received: {name}={value!r}")
    return float(value)


def check_known(name: str, value: object, known: Iterable[object]) -> None:
    """Raise ArgumentError unless `value` is one of the values in `known`."""
    choices = list(known)
    if value not in choices:
        raise ArgumentError(f"{name}: expected one of {', '.join(map(repr, choices))}. Received: {name}={value!r}")


def divisible(name: str, value: int, by: str, divisor: int) -> int:
    """Return `value` / `divisor` if it is an integer; else raise ArgumentError. `by` is the name of the divisor."""
    if value % divisor:
        raise ArgumentError(f"{name}: expected a multiple of {by}={divisor}. Received: {name}={value}")
    return value // divisor
