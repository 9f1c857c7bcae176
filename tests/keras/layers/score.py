"""The mistakes of these layers that the doctor names: KERAS_BACKEND=jax python -m tests.keras.layers.score [PART]"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import keras

import headwise
from headwise.doctor import Diagnosis
from tests.keras.layers import mistakes


def each() -> Iterator[tuple[str, str, str]]:
    """(file, class, mistake) of every layer for this backend; "" is the healthy form."""
    for file, classes in mistakes.FILES[keras.backend.backend()].items():
        for name, wrongs in classes.items():
            yield from ((file, name, wrong) for wrong in ("", *wrongs))


def examined(file: str, name: str, wrong: str) -> Diagnosis:
    """The diagnosis of one layer, 16 wide with 4 heads, which is built by trial."""

    def make(**changes: Any) -> keras.layers.Layer:
        cls = getattr(importlib.import_module(f"tests.keras.layers.{file}"), name)
        layer: keras.layers.Layer = cls(
            *(changes.get(key, size) for key, size in mistakes.SIZES[name].items()), wrong=wrong
        )
        return layer

    return headwise.diagnose(make(), make=make, timeout=None)


def main() -> None:
    """Print a line for each layer, and the counts."""
    keras.utils.set_random_seed(0)
    named = wrongs = healthy = alarms = 0
    for file, name, wrong in each():
        if not all(part in f"{file} {name} {wrong}" for part in sys.argv[1:]):
            continue
        begun = time.monotonic()
        diagnosis = examined(file, name, wrong)
        bugs = [x.name for x in diagnosis.bugs]
        wrongs, healthy = wrongs + bool(wrong), healthy + (not wrong)
        right = mistakes.NAMES[wrong] in bugs if wrong else not bugs and not diagnosis.not_examined
        named, alarms = named + bool(wrong and right), alarms + (not wrong and not right)
        mark = "ok " if right else "BAD"
        print(
            f"{mark} {file:<10} {name:<22} {wrong:<28} {', '.join(bugs):<30} {time.monotonic() - begun:.1f} s",
            flush=True,
        )
        if not right:
            print(diagnosis)
    print(f"{keras.backend.backend()}: {named} of {wrongs} mistakes named, {alarms} of {healthy} healthy with a bug")


if __name__ == "__main__":
    main()
