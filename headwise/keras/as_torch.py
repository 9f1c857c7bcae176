"""Wraps a Keras layer as a torch module, on any backend: for the doctor, and to compare the layer with torch modules.

module = headwise.keras.as_torch(layer)
y = module(torch.randn(2, 5, 16))        # computed by the layer, on TensorFlow or JAX; gradients pass through it
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch
from keras import ops, tree
from torch import nn

from headwise.errors import ArgumentError, DtypeError
from headwise.keras.autograd import Call, Compiled, Made, Plan, from_torch
from headwise.keras.to_torch import to_torch
from headwise.keras.watching.paths import paths

Tensor = Any  # a tensor of the backend


def as_torch(layer: keras.layers.Layer) -> nn.Module:
    """Return a built Keras layer as a module of torch tensors. If Keras runs on torch, return the layer itself.

    The module's Parameters begin as copies of the layer's weights, under the layers' paths ("qkv.kernel"). The module
    computes with these copies, so copies of the module are independent and the layer does not change; `store(module)`
    writes the Parameters back into the layer. Weights that are not trained are buffers. `module.train()` and `.eval()`
    set the argument `training=`; seeds are drawn from torch's generator. The arguments are those of the layer's call.

    torch sees only the layer's output and the output's gradients (`tf.GradientTape`, `jax.vjp`; first derivatives
    only), not the layer's operations. The layer computes in its own dtype.

    Raises:
        DtypeError: `layer` is not a Keras layer.
        ArgumentError: the layer is not built.
    """
    if not isinstance(layer, keras.layers.Layer):
        raise DtypeError(f"layer: expected a Keras layer or model. Received: {type(layer).__name__}")
    if isinstance(layer, nn.Module):
        return layer
    if not is_built(layer):
        raise ArgumentError(
            f"layer: expected a built layer. Received: a {type(layer).__name__} that was never called. Call it once, "
            "or build it with the shape of its inputs"
        )
    of: Any = type(layer)
    module: nn.Module = named_as(of, KerasModule)(layer)
    return module


def store(module: nn.Module) -> None:
    """Write the Parameters and buffers of a module that `as_torch` returned into its Keras layer."""
    if not isinstance(module, KerasModule):
        raise DtypeError(f"module: expected a module that as_torch returned. Received: {type(module).__name__}")
    for variable, value in zip(module.variables, module.values(), strict=True):
        variable.assign(from_torch(value, variable.dtype))


def is_built(layer: keras.layers.Layer) -> bool:
    """Return whether a layer has its weights. A headwise layer, which needs no input shapes for this, is built now.

    A sublayer that is never called has no weights; a layer counts as built even if some of its sublayers have none.
    """
    if not layer.built and type(layer).__module__.startswith("headwise.keras."):
        layer.build()
    parts = layer._flatten_layers(include_self=False)
    return bool(layer.built) and (bool(layer.weights) or all(part.built for part in parts))


class _Held:
    """Holds a Keras layer and its compiled functions. All copies of a torch module share this object."""

    def __init__(self, layer: keras.layers.Layer) -> None:
        self.layer = layer
        self._compiled: dict[Any, Compiled] = {}

    def compiled(self, plan: Plan) -> Plan | Compiled:
        """Return an object that computes this plan (a call of the layer): on JAX a compiled one, else the plan itself.

        It is compiled once for all calls that differ only in their tensors. (Eagerly, JAX would compile each operation
        for each shape.)
        """
        if keras.backend.backend() != "jax":
            return plan
        return self._compiled.setdefault(plan.key, Compiled(plan))

    def __deepcopy__(self, memo: dict[int, Any]) -> _Held:
        return self


class Part(nn.Module):
    """The torch module of a sublayer: it has the sublayer's weights and plain options. It can be called by itself."""

    def __init__(self, layer: keras.layers.Layer) -> None:
        super().__init__()
        self._held = _Held(layer)
        self._draws = False  # whether the layer draws from TensorFlow's global generator
        self._paths: dict[str, str] = {}  # the path of a Keras variable -> the name of its Parameter in this module
        vars(self).update(
            {name: x for name, x in vars(layer).items() if _is_option(name, x) and name not in vars(self)}
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            held = vars(self).get("_held")
            if held is None or name.startswith("__") or not _is_option(name, getattr(held.layer, name, self)):
                raise
            return getattr(held.layer, name)

    @property
    def variables(self) -> list[keras.Variable]:
        """The layer's variables that have a Parameter or a buffer in this module."""
        layer = self._held.layer
        return [v for v in (*layer.trainable_variables, *layer.non_trainable_variables) if v.path in self._paths]

    def values(self) -> list[torch.Tensor]:
        """The Parameters and buffers of this module, in the order of `variables`."""
        own = dict(self.named_parameters(remove_duplicate=False)) | dict(self.named_buffers(remove_duplicate=False))
        return [own[self._paths[v.path]] for v in self.variables]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the Keras layer with torch tensors, and return its output as torch tensors."""
        layer = self._held.layer
        if kwargs.get("training") is None:
            kwargs["training"] = self.training
        flat = [_as_tensor(x) for x in tree.flatten((args, kwargs))]
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        call = Plan(layer, (args, kwargs), flat, self.variables)
        if self._draws:
            _seed_backend()
        seeds = [_drawn(v) for v in call.seeds]  # also in eval mode, to reveal a layer that is random there
        made = Made(self._held.compiled(call), seeds, call.dtypes, len(tensors))
        found = Call.apply(made, *tensors, *self.values())
        if self.training:
            self._keep_state(made.state)
        return tree.pack_sequence_as(made.structure, list(found))

    def _keep_state(self, state: Sequence[Tensor]) -> None:
        """Copy the new values of weights that are not trained, such as the means of a batch norm, into the buffers."""
        with torch.no_grad():
            for variable, value, moved in zip(self.variables, self.values(), state, strict=True):
                if not variable.trainable:
                    value.copy_(to_torch(moved))


def _as_tensor(x: Any) -> Any:
    """Convert an array to a tensor, as a copy, because arrays may change before backward; others stay unchanged."""
    return torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) and x.dtype.kind in "biuf" else x


class KerasModule(Part):
    """The module that `as_torch` returns. `runs_on` is the name of the backend that computes the layer."""

    runs_on: str

    def __init__(self, layer: keras.layers.Layer) -> None:
        super().__init__(layer)
        self.runs_on = keras.backend.backend()
        self._draws = self.runs_on == "tensorflow" and any(map(_draws_globally, paths(layer).values()))
        self.train(False)
        parts: dict[str, Part] = {"": self}
        for path, part in paths(layer).items():
            variables = [*part._trainable_variables, *part._non_trainable_variables]
            if not variables:
                shape = _never_used(part, layer)
                if shape is not None:
                    _put(_at(path, part, parts), "kernel", torch.randn(shape) * shape[0] ** -0.5, trainable=True)
                continue
            owner = _at(path, part, parts)
            for variable in variables:
                name = _free(owner, variable.name)
                _put(owner, name, to_torch(variable.value).detach().clone(), variable.trainable)
                for above, holder in parts.items():
                    if holder is owner or not above or f"{path}.".startswith(f"{above}."):
                        inner = path[len(above) :].lstrip(".")
                        holder._paths[variable.path] = f"{inner}.{name}" if inner else name


@functools.cache
def named_as(of: Any, kind: Any) -> Any:
    """Make (only once) a subclass of `kind` with the name, docstring and signature of the Keras layer class `of`."""
    call = inspect.signature(of.call)

    def forward(self: Part, *args: Any, **kwargs: Any) -> Any:
        return kind.forward(self, *args, **kwargs)

    def begin(self: Part, *args: Any) -> None:
        kind.__init__(self, *args)

    forward.__signature__ = call  # type: ignore[attr-defined]
    forward.__doc__ = of.call.__doc__
    begin.__signature__ = inspect.signature(of.__init__)  # type: ignore[attr-defined]
    given: dict[str, Any] = {"__module__": of.__module__, "__qualname__": of.__qualname__, "__doc__": of.__doc__}
    given |= {"__init__": begin, "forward": forward}
    if "__firstlineno__" in vars(of):  # inspect looks here, from Python 3.13 on
        given["__firstlineno__"] = vars(of)["__firstlineno__"]
    return type(of.__name__, (kind,), given)


def _never_used(part: keras.layers.Layer, layer: keras.layers.Layer) -> tuple[int, ...] | None:
    """Find the shape of the kernel of a projection that is never called, and so has no weights in Keras.

    The shape is taken from a projection with the same options that was called; None if there is none, or if `part` is
    no such projection. With the shape the projection gets a Parameter that has no effect, like a torch module that
    forward never calls.
    """
    if part.built or not isinstance(part, (keras.layers.Dense, keras.layers.EinsumDense)):
        return None
    named = {"name", "kernel_initializer", "bias_initializer"}

    def options(x: keras.layers.Layer) -> Any:
        return type(x), {name: value for name, value in x.get_config().items() if name not in named}

    for other in layer._flatten_layers(include_self=False):
        if other.built and type(other) is type(part) and options(other) == options(part):
            return tuple(other.kernel.shape)
    return None


def _at(path: str, layer: keras.layers.Layer, parts: dict[str, Part]) -> Part:
    """Return the `Part` at a path; make it, and the parts that contain it, if they are missing."""
    if path not in parts:
        above, _, name = path.rpartition(".")
        owner = _at(above, layer, parts)
        parts[path] = type(type(layer).__name__, (Part,), {"__module__": type(layer).__module__})(layer)
        owner.add_module(name if name not in vars(owner) else f"{name}_", parts[path])
    return parts[path]


def _put(owner: nn.Module, name: str, value: torch.Tensor, trainable: bool) -> None:
    vars(owner).pop(name, None)
    if trainable:
        owner.register_parameter(name, nn.Parameter(value))
    else:
        owner.register_buffer(name, value)


def _free(owner: nn.Module, name: str) -> str:
    name = name.replace(".", "_")
    while name in owner._parameters or name in owner._buffers or name in owner._modules:
        name += "_"
    return name


def _is_option(name: str, value: Any) -> bool:
    """Return whether an attribute is a plain option, such as a number of heads, a width or a flag."""
    return (
        isinstance(value, (bool, int, float, str))
        and not name.startswith("__")
        and name not in ("training", "trainable")
    )


def _seed_backend() -> None:
    """Seed TensorFlow's global generator from torch's. (JAX has no global generator.)"""
    import tensorflow as tf

    tf.random.set_seed(int(torch.randint(2**31 - 1, ())))


def _draws_globally(part: keras.layers.Layer) -> bool:
    """Return whether a layer may draw from TensorFlow's global generator. (Seeding it clears TensorFlow's caches.)"""
    if type(part).__module__.startswith("keras."):
        return False
    try:
        code = inspect.getsource(type(part))
    except (OSError, TypeError):
        return True
    return "random" in code or "nn.dropout" in code


def _drawn(seed: keras.Variable) -> Tensor:
    """Draw a new value for a seed variable of Keras, from torch's generator."""
    return ops.convert_to_tensor(
        torch.randint(2**31 - 1, tuple(seed.shape)).numpy().astype(seed.dtype), dtype=seed.dtype
    )
