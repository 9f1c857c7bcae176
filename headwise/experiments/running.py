"""Runs a model on the inputs of an experiment, or on several copies of them in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from headwise.errors import ArgumentError, DtypeError, ShapeError

Inputs = Mapping[str, Any] | Tensor | tuple[Any, ...]
Metric = Callable[[Any], Tensor]  # from the model's result to a number for each example, [B]


def run(model: nn.Module, inputs: Inputs) -> Any:
    """Return the model's result for the inputs. Raises ArgumentError if dropout is active: two runs would differ."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise ArgumentError("experiments: the model drops out at random. Call model.eval() first")
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def count_examples(inputs: Inputs) -> int:
    """Return B: the size of the first dimension of the first tensor. Raises ArgumentError if there is no tensor."""
    values = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else (inputs,)
    for each in values:
        if isinstance(each, Tensor) and each.ndim:
            return each.shape[0]
    raise ArgumentError(
        "experiments: expected inputs with a tensor, whose first dimension is the batch. Received: none"
    )


def copies(inputs: Inputs, count: int) -> Inputs:
    """Return the inputs with all examples repeated `count` times, one copy of the batch after another."""
    batch = count_examples(inputs)

    def repeated(x: Any) -> Any:
        if isinstance(x, Tensor) and x.ndim and x.shape[0] == batch:
            return x.repeat(count, *[1] * (x.ndim - 1))
        return x

    if isinstance(inputs, Mapping):
        return {name: repeated(x) for name, x in inputs.items()}
    return tuple(map(repeated, inputs)) if isinstance(inputs, tuple) else repeated(inputs)


def measured(metric: Metric, out: Any, batch: int) -> Tensor:
    """Apply the metric to a result; return the metric of each example, [B]. Raises ShapeError for another shape."""
    found = metric(out)
    if not isinstance(found, Tensor) or found.shape != (batch,):
        received = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ShapeError(f"metric: expected a number for each example, [{batch}]. Received: {received}")
    if not found.is_floating_point():
        raise DtypeError(f"metric: expected floating-point numbers. Received: {found.dtype}")
    return found


def check_gradient(measures: Tensor) -> None:
    """Raise ArgumentError if the metric has no gradient with respect to the model's activations."""
    if not measures.requires_grad:
        raise ArgumentError(
            "metric: attribution patching needs its gradient, and it has none. Leave out detach() and no_grad(), or "
            "pass attribution=False"
        )
