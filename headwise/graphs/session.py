"""`Session`: a graph that a runtime has loaded. Functions here let a session replace the computation of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

from headwise.errors import CheckpointError
from headwise.graphs.graph import Value


class Session(Protocol):
    """A graph of an export, which a runtime has loaded. Tensors are on the CPU."""

    name: str  # the name of the graph, whose inputs and outputs are the next attributes
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    def giving(self, *names: str) -> Callable[..., tuple[Tensor, ...]]:
        """Return a function that runs the graph: it casts its positional inputs and returns the outputs `names`."""


class Sessions(dict[str, Session]):
    """The sessions of an export, by the names of their graphs. CheckpointError if a graph is missing."""

    def __missing__(self, name: str) -> Session:
        there = ", ".join(self) or "no graph"
        raise CheckpointError(
            f"the export lacks the graph {name!r}, which its task needs: it has {there}. Export it again"
        )


def replace_forward(model: nn.Module, session: Session) -> None:
    """Replace the model's `forward`, so that a session computes `model(*tensors)`.

    The tensors are the graph's inputs by position; arguments that are None are left out. The call returns the outputs
    of the graph: a tensor, or a tuple if there are several outputs.
    """
    run = session.giving(*(value.name for value in session.outputs))

    def forward(*tensors: Tensor | None) -> Any:
        found = run(*(each for each in tensors if each is not None))
        return found[0] if len(found) == 1 else found

    replace_methods(model, forward=forward)


def replace_methods(owner: nn.Module, **methods: Callable[..., Any]) -> None:
    """Replace methods of one object by functions, given by name."""
    for name, method in methods.items():
        setattr(owner, name, method)
