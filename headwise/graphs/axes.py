"""Finds the dynamic axes of a tensor from its sizes in several calls."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from headwise.graphs.graph import Value

Axes = tuple[int | str, ...]


def read_sizes(inputs: Sequence[Value], examples: Sequence[tuple[Tensor, ...]]) -> dict[str, tuple[int, ...]]:
    """The name of each dynamic axis of the inputs -> its size in each example."""
    found: dict[str, tuple[int, ...]] = {}
    for number, value in enumerate(inputs):
        for place, axis in enumerate(value.axes):
            if isinstance(axis, str):
                found.setdefault(axis, tuple(given[number].shape[place] for given in examples))
    return found


def name_axes(name: str, tensors: Sequence[Tensor], words: dict[str, tuple[int, ...]]) -> Axes:
    """The axes of a tensor: numbers for fixed sizes, words for dynamic ones. `tensors`: its value in each example.

    An axis that has the sizes of a word in `words` gets this word. An axis of constant size gets the size. Any other
    axis gets a new word, which is added to `words`.
    """
    axes: list[int | str] = []
    for place, sizes in enumerate(zip(*(tensor.shape for tensor in tensors), strict=True)):
        word = next((word for word, known in words.items() if known == sizes), None)
        if word is None and len(set(sizes)) > 1:
            word = f"{name}_{place}"
            words[word] = sizes
        axes.append(sizes[0] if word is None else word)
    return tuple(axes)
