"""The base class of this package's Keras layers. A layer has the options of its twin, a module of `headwise.nn`."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import torch
from keras import ops
from keras.src.backend import get_keras_mask  # it has no public name
from torch import nn

from headwise.errors import DtypeError, ShapeError
from headwise.keras import saving
from headwise.keras.call import precision

Tensor = Any  # a tensor of the backend (TensorFlow, JAX or PyTorch)
Parts = Sequence[tuple[Any, int | None]]  # layers, each with the width of its input; None = it needs no width

# A function that returns the package `headwise.keras.convert`, which imports every layer; set by `headwise/keras`.
conversions: Any = None

TWINS: dict[type[Layer], type[nn.Module]] = {}


class Layer(keras.layers.Layer):
    """A layer whose config holds the arguments of its constructor.

    A subclass names its `twin` in the class statement: the PyTorch module with the same options. Its constructor takes
    the twin's options as `*args` and `**kwargs`, declares only the options that exist in Keras alone, and calls
    `_begin`; help() and inspect.signature show all options. Where the docstring of a subclass says "Args: as of" the
    twin, help() shows the twin's lines about these arguments, together with the lines for the layer's own options.
    """

    _given: dict[str, Any]

    def __init_subclass__(cls, *, twin: type[nn.Module] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if twin is not None:
            TWINS[cls] = twin
            cls.__doc__ = _with_arguments(inspect.getdoc(cls) or "", inspect.getdoc(twin) or "")
            cls.__init__.__signature__ = _with_options(cls, twin)  # type: ignore[attr-defined]
        if "query_mask" in inspect.signature(cls.call).parameters and "call" in vars(cls):
            cls.call = _taking_mask(cls.call)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        layer = super().__new__(cls, *args, **kwargs)
        bound = inspect.signature(cls.__init__).bind(layer, *args, **kwargs)
        bound.apply_defaults()
        kinds = inspect.signature(cls.__init__).parameters
        given = {
            n: x for n, x in list(bound.arguments.items())[1:] if kinds[n].kind is not inspect.Parameter.VAR_KEYWORD
        }
        object.__setattr__(layer, "_given", given)  # not an attribute that Keras tracks
        return layer

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self._call_has_mask_arg = "query_mask" in self.call_signature_parameters  # for keras.layers.TimeDistributed

    def _begin(self, *args: Any, **kwargs: Any) -> Any:
        """Begin the constructor: initialise the Keras layer, and return the twin's options, with their defaults."""
        cls = next(cls for cls in type(self).__mro__ if cls in TWINS)
        bound = inspect.signature(cls).bind(*args, **kwargs)
        bound.apply_defaults()
        Layer.__init__(self, **bound.arguments.pop("kwargs"))
        return SimpleNamespace(**{name: bound.arguments[name] for name in _options(TWINS[cls])})

    def build(self, input_shape: object = None) -> None:
        """Create the weights. Their shapes depend only on the options, so `layer.build()` works."""
        for part, width in self._parts():
            if part is not None and not part.built:
                part.build((None, None, width))
        self.built = True

    def _parts(self) -> Parts:
        """Return (sublayer or None, width of its input or None) for each sublayer that may have weights."""
        return ()

    def get_config(self) -> dict[str, Any]:
        """All options of the constructor, by name."""
        return {**super().get_config(), **{name: saving.to_config(value) for name, value in self._given.items()}}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Make the layer that a result of `get_config` describes."""
        return cls(**{name: value if name == "dtype" else saving.from_config(value) for name, value in config.items()})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args = tuple(saving.wrapped(x) for x in args)
        kwargs = {name: saving.wrapped(x) for name, x in kwargs.items()}
        if self._call_has_mask_arg and "mask" in kwargs:
            kwargs.setdefault("query_mask", kwargs.pop("mask"))
        query = args[0] if args else kwargs.get("query")
        alone = self._call_has_mask_arg and all(x is None for x in args[1:])
        if alone and kwargs.get("query_mask") is None and not isinstance(query, keras.KerasTensor):
            kwargs["query_mask"] = get_keras_mask(query)  # Keras passes it only if there is a second tensor
        return super().__call__(*args, **kwargs)

    def compute_mask(self, query: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        """Return the padding mask of the output: the mask of the queries, because each query has one output."""
        return kwargs.get("query_mask", kwargs.get("previous_mask", args[0] if len(args) == 1 else None))

    def compute_output_shape(self, *shapes: Any) -> Any:
        """Return the shape of the output, for inputs of these shapes: `keras.layers.TimeDistributed` asks for it."""
        return self.compute_output_spec(*(keras.KerasTensor(shape, dtype=self.compute_dtype) for shape in shapes)).shape

    @classmethod
    def from_torch(cls, module: nn.Module, *, kernel: str | None = None, dtype: Any = None, **kwargs: Any) -> Any:
        """Make a built layer with the options and weights of a module of `headwise.nn`, a position scheme or `Bert`.

        Some modules of PyTorch itself are converted too (see `module`).

        Args:
            module: an instance of this layer's twin, or nn.MultiheadAttention, nn.TransformerEncoderLayer or
                nn.TransformerDecoderLayer.
            kernel: the kernel of every attention in the layer; None = the module's kernel, if Keras has it.
            dtype: the dtype of the layer, or its dtype policy; None = the dtype of the module's parameters.
            kwargs: `name`, `trainable`.

        Raises:
            DtypeError: a module of another class.
            ArgumentError: an option without an equivalent in Keras, an unknown kernel or dtype, or weights that are
                quantised or have LoRA.
            CheckpointError: a weight that the layer does not have, or a module with a replaced submodule.
        """
        return conversions().from_torch(cls, module, kernel=kernel, dtype=dtype, **kwargs)

    def to_torch(self, *, kernel: str | None = None) -> nn.Module:
        """Make the PyTorch twin of this layer, with its options and weights, on the default device.

        The module is in eval mode, like a Keras layer outside of `fit`. Its dtype is that of the weights: float32 for a
        mixed policy. The `seed` is not converted, because PyTorch has one generator for all modules.

        Args:
            kernel: the kernel of every attention in the module; None = the layer's kernel, if PyTorch has it.

        Raises:
            ArgumentError: a layer that is not built, an option or kernel without an equivalent, or weights that are
                quantised or have LoRA.
            CheckpointError: a weight that the module does not have.
        """
        return conversions().to_torch(self, kernel=kernel)

    @classmethod
    def from_keras(cls, layer: keras.layers.Layer) -> Any:
        """Make a `MultiHeadAttention` equivalent to a MultiHeadAttention or GroupQueryAttention of Keras.

        It has the same weights, name, dtype and seed. Two things differ. For a query that may attend to nothing the
        heads' output is 0 here; in Keras it is the mean of all values, unless it returns scores or uses dropout.
        Queries that are padding attend like all others here; in Keras they may attend to nothing.

        Raises:
            DtypeError: a layer of another class.
            ArgumentError: a layer that is not built, or an option without an equivalent: a sliding window (here it is
                a mask), a gate with a bias, a regularizer or constraint, several attention axes, an output of another
                shape than the query.
        """
        return conversions().from_keras(layer, cls)

    def to_keras(self) -> keras.layers.Layer:
        """Convert this `MultiHeadAttention` to Keras's MultiHeadAttention, or GroupQueryAttention if heads share keys.

        Raises:
            ArgumentError: a layer of another class, a layer that is not built, or an option that Keras does not have.
        """
        return conversions().to_keras(self)

    def _attended(self, query: Any, k_len: int | None, with_weights: bool) -> Any:
        """Return the shape of attention's output for these queries; if `with_weights` also the shape of the weights."""
        out = keras.KerasTensor(query.shape, dtype=self.compute_dtype)
        if not with_weights:
            return out
        shape = (query.shape[0], self.num_heads, query.shape[1], k_len)
        return out, keras.KerasTensor(shape, dtype=precision(out))

    def dense(self, width: int, *, name: str, bias: bool = True, **kwargs: Any) -> keras.layers.Dense:
        """Make a linear map to `width` outputs, in the dtype of this layer."""
        return keras.layers.Dense(width, use_bias=bias, name=name, dtype=self.dtype_policy, **kwargs)


def _taking_mask(call: Any) -> Any:
    """Make a layer's `call` take `mask`, as keras.layers.TimeDistributed names the padding mask of the queries."""

    @functools.wraps(call)
    def taking(self: Layer, *args: Any, mask: Tensor | None = None, **kwargs: Any) -> Any:
        return call(self, *args, **(kwargs if mask is None else {"query_mask": mask, **kwargs}))

    return taking


def check_input(name: str, x: Tensor, width: int, *, batch: int | None = None) -> None:
    """Raise an error unless `x` is a float tensor [B, S, width], with B = `batch` if both are known."""
    shape = getattr(x, "shape", None)
    if shape is None:
        raise DtypeError(f"{name}: expected a tensor [B, S, {width}]. Received: {type(x).__name__}")
    if len(shape) != 3 or shape[-1] != width:
        raise ShapeError(f"{name}: expected [B, S, {width}]. Received: {name}.shape={tuple(shape)}")
    if batch is not None and shape[0] is not None and shape[0] != batch:
        raise ShapeError(f"{name}: expected the batch size of query, B={batch}. Received: {name}={tuple(shape)}")


def compute_positions(x: Tensor, padding: Tensor | None, given: Tensor | None) -> Tensor:
    """Return the positions of the tokens x [B, S, M], int32 [S] or [B, S]: `given`, or else counted without padding."""
    if given is not None:
        return ops.cast(ops.convert_to_tensor(given), "int32")
    if padding is not None:
        return ops.maximum(ops.cumsum(ops.cast(padding, "int32"), axis=1) - 1, 0)
    return ops.arange(ops.shape(x)[1], dtype="int32")


def read_values(x: Tensor) -> np.ndarray | None:
    """Return the values of a tensor; None while a function is traced, when tensors have no values."""
    if keras.backend.backend() == "torch" and torch.compiler.is_compiling():
        return None
    try:
        return np.asarray(ops.convert_to_numpy(x))
    except Exception:  # each backend has its own error for a tensor without values
        return None


def both(*masks: Tensor | None) -> Tensor | None:
    """Combine padding masks: bool [B, K], True = real in every mask that is not None; None if all masks are None."""
    found = [ops.cast(mask, "bool") for mask in masks if mask is not None]
    return functools.reduce(lambda a, b: a if a is b else ops.logical_and(a, b), found) if found else None


def _options(twin: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Return the options that a Keras layer shares with its PyTorch twin, by name."""
    return {name: x for name, x in inspect.signature(twin).parameters.items() if name not in ("device", "dtype")}


def _with_options(cls: type[Layer], twin: type[nn.Module]) -> inspect.Signature:
    """Return the signature of a layer's constructor, with the options of the twin in place of `*args`."""
    parameters = dict(inspect.signature(cls.__init__).parameters)
    del parameters["args"]
    theirs = [
        x.replace(annotation=x.annotation.replace("nn.Module", "keras.layers.Layer")) for x in _options(twin).values()
    ]
    return inspect.Signature([parameters.pop("self"), *theirs, *parameters.values()])


def _with_arguments(doc: str, of_twin: str) -> str:
    """Insert the twin's lines about its arguments into the docstring `doc`, where it says "Args: as of"."""
    ours = re.search(r"^Args: as of .*\n(?: .+\n)*", doc, flags=re.MULTILINE)
    theirs = re.search(r"^Args:\n(?: .+\n)+", of_twin, flags=re.MULTILINE)
    if ours is None or theirs is None:
        return doc
    found = re.findall(r"^ {4}(\S[^:]*)(:.*\n(?: {5}.*\n)*)", theirs[0] + ours[0], flags=re.MULTILINE)
    return doc.replace(ours[0], "Args:\n" + "".join(f"    {names}{text}" for names, text in dict(found).items()))
