"""Finds the dynamic axes of a tensor from its sizes in several calls."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from headwise.graphs.graph import Value

Axes = tuple[int | str, ...]


def read_sizes(inputs: Sequence[Value], examples: Sequence[tuple[Tensor, ...]]) -> dict[str, tuple[int, ...]]:
    """Return a dict from the name of each dynamic axis of the inputs to the axis's size in each example."""
    found: dict[str, tuple[int, ...]] = {}
    for number, value in enumerate(inputs):
        for place, axis in enumerate(value.axes):
            if isinstance(axis, str):
                found.setdefault(axis, tuple(given[number].shape[place] for given in examples))
    return found


def name_axes(name: str, tensors: Sequence[Tensor], words: dict[str, tuple[int, ...]]) -> Axes:
    """Decide which axes of a tensor are dynamic: return a number for each axis of fixed size, a word for a dynamic one.

    An axis whose sizes in the examples equal those of a word in `words` gets this word. Another axis gets its size if
    all examples have the same size, else a new word, which is added to `words`.

    Args:
        name: the name of the tensor, with which new words begin.
        tensors: the value of the tensor in each example.
        words: the name of each known dynamic axis, with its size in each example.
    """
    axes: list[int | str] = []
    for place, sizes in enumerate(zip(*(tensor.shape for tensor in tensors), strict=True)):
        word = next((word for word, known in words.items() if known == sizes), None)
        if word is None and len(set(sizes)) > 1:
            word = f"{name}_{place}"
            words[word] = sizes
        axes.append(sizes[0] if word is None else word)
    return tuple(axes)
