"""Find the dynamic axes of a tensor from its sizes in several calls."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from headwise.graphs.graph import Value

Axes = tuple[int | str, ...]


def sizes_of_words(inputs: Sequence[Value], examples: Sequence[tuple[Tensor, ...]]) -> dict[str, tuple[int, ...]]:
    """The size of each named axis of the inputs in each example."""
    found: dict[str, tuple[int, ...]] = {}
    for number, value in enumerate(inputs):
        for place, axis in enumerate(value.axes):
            if isinstance(axis, str):
                found.setdefault(axis, tuple(given[number].shape[place] for given in examples))
    return found


def axes_of(name: str, tensors: Sequence[Tensor], words: dict[str, tuple[int, ...]]) -> Axes:
    """The axes of a tensor, given its value in each example.

    An axis with the sizes of a known word gets that word; an axis of constant size gets a number; any other gets a new
    word, which is added to `words`.
    """
    axes: list[int | str] = []
    for place, sizes in enumerate(zip(*(tensor.shape for tensor in tensors), strict=True)):
        word = next((word for word, known in words.items() if known == sizes), None)
        if word is None and len(set(sizes)) > 1:
            word = f"{name}_{place}"
            words[word] = sizes
        axes.append(sizes[0] if word is None else word)
    return tuple(axes)
