"""`Session`: a graph that some runtime runs, and how it replaces the computation of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

from headwise.errors import CheckpointError
from headwise.graphs.graph import Value


class Session(Protocol):
    """A graph of an export, which a runtime has loaded. Tensors are on the CPU."""

    name: str  # of the graph, as its inputs and outputs
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    def giving(self, *names: str) -> Callable[..., tuple[Tensor, ...]]:
        """The graph as a function of its inputs by position, cast to their dtypes; returns the outputs `names`."""


class Sessions(dict[str, Session]):
    """The sessions of an export by the names of their graphs. A missing one is a CheckpointError."""

    def __missing__(self, name: str) -> Session:
        there = ", ".join(self) or "no graph"
        raise CheckpointError(
            f"the export lacks the graph {name!r}, which its task needs: it has {there}. Export it again"
        )


def replace_forward(model: nn.Module, session: Session) -> None:
    """Let a session compute `model(*tensors)`: the tensors are its inputs by position, without those that are None.

    The call returns the outputs of the graph: a tensor, or a tuple if there are several.
    """
    run = session.giving(*(value.name for value in session.outputs))

    def forward(*tensors: Tensor | None) -> Any:
        found = run(*(each for each in tensors if each is not None))
        return found[0] if len(found) == 1 else found

    replace_methods(model, forward=forward)


def replace_methods(owner: nn.Module, **methods: Callable[..., Any]) -> None:
    """Replace methods of one object by functions."""
    for name, method in methods.items():
        setattr(owner, name, method)
