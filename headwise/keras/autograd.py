"""Makes a call of a Keras layer one operation of torch's autograd, whose gradients the backend computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import torch
from keras import ops, tree
from keras.src.random.seed_generator import global_seed_generator  # it has no public name

from headwise.keras.to_torch import to_torch
from headwise.masks import Mask

Tensor = Any  # a tensor of the backend (TensorFlow, JAX or PyTorch)


def from_torch(x: torch.Tensor, dtype: str | None = None) -> Tensor:
    """Copy a torch tensor to a tensor of the backend."""
    x = x.detach().cpu()
    if x.dtype == torch.bfloat16:
        x = x.float()
    values = np.array(x.numpy())
    return ops.convert_to_tensor(values, dtype=dtype or keras.backend.standardize_dtype(values.dtype))


class Plan:
    """A call of a layer, without its tensors' values. Its masks are part of it, with their contents as they are now."""

    def __init__(self, layer: keras.layers.Layer, given: Any, flat: list[Any], variables: list[keras.Variable]) -> None:
        self._layer, self._variables = layer, variables
        self._flat = [None if isinstance(x, torch.Tensor) else x.owned() if isinstance(x, Mask) else x for x in flat]
        self._places = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]
        self._structure = tree.map_structure(lambda x: None, given)
        known = {v.path for v in variables}
        self.seeds = [v for v in (*layer.trainable_variables, *layer.non_trainable_variables) if v.path not in known]
        self.seeds.append(global_seed_generator().state)  # of random functions without a seed of their own
        # Cast float tensors as Keras casts the arguments of a layer. Integer tensors are not cast.
        floats = layer.compute_dtype if layer.autocast else None
        self.dtypes = [floats if x.is_floating_point() else None for x in flat if isinstance(x, torch.Tensor)]
        self.dtypes += [v.dtype for v in variables]
        plain = tuple(x if isinstance(x, (bool, int, float, str, type(None))) else id(x) for x in self._flat)
        self.key = (str(self._structure), plain, tuple(self._places))

    def run(self, tensors: Sequence[Any], weights: Sequence[Any], seeds: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Call the layer with these tensors and weights, without changing it. Returns (output, weights after it)."""
        filled = list(self._flat)
        for i, x in zip(self._places, tensors, strict=True):
            filled[i] = x
        args, kwargs = tree.pack_sequence_as(self._structure, filled)
        mapping = [*zip(self._variables, weights, strict=True), *zip(self.seeds, seeds, strict=True)]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            out = self._layer(*args, **kwargs)
        return out, [scope.get_current_value(v) for v in self._variables]


class Compiled:
    """A `Plan` and its gradients, as functions that JAX compiles."""

    def __init__(self, plan: Plan) -> None:
        import jax

        self._plan = plan
        self._structure: Any = None  # the nested structure (lists, dicts) of the output
        # There are few calls for each shape, so fast compilation matters more than fast calls.
        options = {"xla_backend_optimization_level": 0}
        self._run = jax.jit(self._flat, compiler_options=options)
        self._back = jax.jit(self._gradients, static_argnums=3, compiler_options=options)

    def run(self, *given: Any) -> tuple[Any, list[Any]]:
        """Compute the same as `Plan.run`, by the compiled function."""
        out, state = self._either(self._run, self._flat, *given)
        return tree.pack_sequence_as(self._structure, list(out)), state

    def back(self, *given: Any) -> Any:
        """Compute the gradients of some tensors and weights, from the gradients of the floating-point outputs."""
        return self._either(self._back, self._gradients, *given)

    def _either(self, compiled: Callable[..., Any], plain: Callable[..., Any], *given: Any) -> Any:
        import jax

        try:
            return compiled(*given)
        except jax.errors.ConcretizationTypeError:  # the layer's code needs values of tensors: it cannot be compiled
            return plain(*given)

    def _flat(self, *given: Any) -> Any:
        out, state = self._plan.run(*given)
        self._structure = tree.map_structure(lambda x: None, out)
        return tree.flatten(out), state

    def _gradients(
        self, tensors: Sequence[Any], weights: Sequence[Any], seeds: Any, places: tuple[int, ...], outputs: Any
    ) -> Any:
        import jax

        given = [*tensors, *weights]

        def floats(*leaves: Any) -> list[Any]:
            filled = list(given)
            for i, x in zip(places, leaves, strict=True):
                filled[i] = x
            out, _ = self._plan.run(filled[: len(tensors)], filled[len(tensors) :], seeds)
            return [x for x in tree.flatten(out) if _is_float(x)]

        _, vjp = jax.vjp(floats, *[given[i] for i in places])
        return vjp(outputs)


class Made:
    """One computation by the backend: its forward pass (`run`) and, after that, its backward pass (`pull`)."""

    def __init__(
        self, computation: Plan | Compiled, seeds: list[Tensor], dtypes: list[str | None], inputs: int
    ) -> None:
        self._computation, self._seeds, self._dtypes, self._inputs = computation, seeds, dtypes, inputs
        self.tracked = torch.is_grad_enabled()  # asked here, because inside autograd's function it is always False
        self.structure: Any = None  # the nested structure (lists, dicts) of the output
        self.state: list[Tensor] = []
        self.pull: Callable[[list[torch.Tensor | None]], list[Tensor | None]] | None = None

    def run(self, tensors: Sequence[torch.Tensor], wanted: Sequence[bool]) -> list[Any]:
        """Run the forward pass; return the outputs as a flat list. `wanted`: which tensors need a gradient."""
        given = [from_torch(x, dtype) for x, dtype in zip(tensors, self._dtypes, strict=True)]
        places = tuple(i for i, asked in enumerate(wanted) if asked)
        split = given[: self._inputs], given[self._inputs :], self._seeds
        if isinstance(self._computation, Compiled):
            found = self._flat(*split)
            pull = _with_vjp(self._computation, split, places, found)
        else:
            found, pull = _with_tape(lambda: self._flat(*split), [given[i] for i in places])

        def back(gradients: list[torch.Tensor | None]) -> list[Tensor | None]:
            by_place = dict(zip(places, pull(gradients), strict=True))
            return [by_place.get(i) for i in range(len(given))]

        self.pull = back
        return found

    def _flat(self, *given: Any) -> list[Any]:
        out, self.state = self._computation.run(*given)
        self.structure = tree.map_structure(lambda x: None, out)
        found: list[Any] = tree.flatten(out)
        return found


def _is_float(x: Any) -> bool:
    return hasattr(x, "dtype") and "float" in keras.backend.standardize_dtype(x.dtype)


Pull = Callable[[list[torch.Tensor | None]], Any]  # gradients of the outputs -> gradients of the leaves


def _with_tape(flat: Callable[[], list[Any]], leaves: list[Tensor]) -> tuple[list[Any], Pull]:
    import tensorflow as tf

    if not leaves:
        return flat(), lambda gradients: []
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(leaves)
        found = flat()

    def pull(gradients: list[torch.Tensor | None]) -> Any:
        met = [
            (x, from_torch(g, x.dtype.name))
            for x, g in zip(found, gradients, strict=True)
            if g is not None and _is_float(x)
        ]
        if not met:
            return [None] * len(leaves)
        targets, given = zip(*met, strict=True)
        return tape.gradient(list(targets), leaves, output_gradients=list(given))

    return found, pull


def _with_vjp(computation: Compiled, given: Any, places: tuple[int, ...], found: list[Any]) -> Pull:
    """Return a function for the backward pass on JAX. It computes the forward pass again, before the gradients.

    So a forward pass that needs no gradient, as most do, costs nothing extra.
    """

    def pull(gradients: list[torch.Tensor | None]) -> Any:
        outputs = [
            ops.zeros_like(x) if g is None else from_torch(g, str(x.dtype))
            for x, g in zip(found, gradients, strict=True)
            if _is_float(x)
        ]
        return computation.back(*given, places, outputs)

    return pull


class Call(torch.autograd.Function):
    """One call of a layer, as an operation of torch's autograd."""

    @staticmethod
    def forward(ctx: Any, made: Made, *tensors: torch.Tensor) -> tuple[Any, ...]:
        asked = ctx.needs_input_grad[1:] if made.tracked else [False] * len(tensors)
        wanted = [yes and x.is_floating_point() for yes, x in zip(asked, tensors, strict=True)]
        found = made.run(tensors, wanted)
        ctx.made, ctx.like = made, [(x.dtype, x.device) for x in tensors]
        ctx.set_materialize_grads(False)
        return tuple(to_torch(x) if hasattr(x, "dtype") else x for x in found)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        found = ctx.made.pull(list(gradients))
        return (
            None,
            *(
                None if g is None else to_torch(g).to(*like)
                for g, like in zip(found, map(reversed, ctx.like), strict=True)
            ),
        )
