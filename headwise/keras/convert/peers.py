"""Converts `keras.layers.MultiHeadAttention` and `keras.layers.GroupQueryAttention` to ours, and back.

Keras has a separate projection [M, H, D] for queries, keys, values and the gate; its output projection is [H, D, M].
"""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
from keras import ops

from headwise.errors import ArgumentError, DtypeError
from headwise.keras.call import precision
from headwise.keras.convert.weights import check_plain_keras
from headwise.keras.layer import Layer
from headwise.keras.multi_head import MultiHeadAttention

Parts = dict[str, Any]  # the sublayers "query", "key", "value", "output" and, if there is a gate, "gate"


def from_keras(layer: keras.layers.Layer, cls: type[Layer] = MultiHeadAttention) -> MultiHeadAttention:
    """Convert a Keras attention layer to ours: see `Layer.from_keras`."""
    if not issubclass(cls, MultiHeadAttention):
        raise ArgumentError(
            f"from_keras: keras.layers has no equivalent of {cls.__name__}. Expected headwise.keras.MultiHeadAttention"
        )
    if type(layer) not in (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention):
        raise DtypeError(
            "from_keras: expected a keras.layers.MultiHeadAttention or GroupQueryAttention, not a subclass, which may "
            f"compute something else. Received: {type(layer).__name__}"
        )
    _check_weights("from_keras", layer)
    config = layer.get_config()
    parts = _parts(layer)
    _check_options(config, parts)
    dim, heads, head_dim = (int(size) for size in parts["query"].kernel.shape)
    kdim, kv_heads, _ = (int(size) for size in parts["key"].kernel.shape)
    vdim, _, value_dim = (int(size) for size in parts["value"].kernel.shape)
    ours = cls(
        *(dim, heads),
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        value_head_dim=value_dim,
        kdim=kdim,
        vdim=vdim,
        bias=config["use_bias"],
        gate=config.get("use_gate", False),  # Keras 3.12 has no gate, and no sliding window
        dropout=config["dropout"],
        seed=config["seed"],
        name=layer.name,
        dtype=layer.dtype_policy,
        trainable=bool(layer.trainable_weights),
    )
    ours.build()
    for ours_part, names in _layout(ours):
        kernels = [_matrix(parts[name].kernel, into_heads=name != "output") for name in names]
        ours_part.kernel.assign(np.concatenate(kernels, axis=1))
        if ours_part.use_bias:
            ours_part.bias.assign(np.concatenate([_array(parts[name].bias).reshape(-1) for name in names]))
    return ours


def to_keras(ours: Layer) -> keras.layers.Layer:
    """Convert our attention layer to Keras's: see `Layer.to_keras`."""
    if type(ours) is not MultiHeadAttention:
        raise ArgumentError(f"to_keras: expected a MultiHeadAttention of this package. Received: {type(ours).__name__}")
    _check_weights("to_keras", ours)
    bias = ours.out.use_bias
    first = ours.qkv if ours.is_fused else ours.q
    grouped = ours.num_kv_heads != ours.num_heads
    there_is_none = {
        "projection": ours.projection != "per_head",
        "output_bias": ours.projection == "per_head" and first.use_bias != bias,
        "qk_norm": ours.q_norm is not None,
        "softcap": ours.softcap is not None,
        "sinks": ours.sinks is not None,
        "scale": ours.scale is not None and abs(ours.scale * ours.head_dim**0.5 - 1) > 1e-6,
        "positions": ours.positions is not None,
        "gate without a bias, because the other projections have one": ours.gate is not None and bias,
        "value_head_dim with shared key heads": grouped and ours.value_head_dim != ours.head_dim,
        "kernel": ours.kernel != "auto",
    }
    if "use_gate" not in inspect.signature(keras.layers.MultiHeadAttention.__init__).parameters:
        there_is_none[f"gate; Keras 3.14 has. Received: keras {keras.__version__}"] = ours.gate is not None
    for name, used in there_is_none.items():
        if used:
            raise ArgumentError(f"to_keras: keras.layers has no equivalent of this layer's {name}")
    options: dict[str, Any] = {
        "dropout": ours.dropout,
        "use_bias": bias,
        **({} if ours.gate is None else {"use_gate": True}),
        "seed": ours._given["seed"],
        "name": ours.name,
        "dtype": ours.dtype_policy,
        "trainable": bool(ours.trainable_weights),
    }
    theirs: Any
    if grouped:
        theirs = keras.layers.GroupQueryAttention(ours.head_dim, ours.num_heads, ours.num_kv_heads, **options)
    else:
        theirs = keras.layers.MultiHeadAttention(ours.num_heads, ours.head_dim, ours.value_head_dim, **options)
    theirs.build((None, None, ours.dim), (None, None, ours.vdim), (None, None, ours.kdim))
    parts = _parts(theirs)
    for ours_part, names in _layout(ours):
        widths = [_matrix(parts[name].kernel, into_heads=name != "output").shape[1] for name in names]
        cuts = np.cumsum(widths)[:-1]
        for name, kernel in zip(names, np.split(_array(ours_part.kernel), cuts, axis=1), strict=True):
            parts[name].kernel.assign(kernel.reshape(parts[name].kernel.shape))
        if ours_part.use_bias:
            for name, values in zip(names, np.split(_array(ours_part.bias), cuts), strict=True):
                parts[name].bias.assign(values.reshape(parts[name].bias.shape))
    return theirs


def _check_weights(what: str, layer: Any) -> None:
    """Raise ArgumentError unless weights are plain, and all trainable or all frozen: Keras splits our matrices."""
    if not layer.built:
        raise ArgumentError(f"{what}: {layer.name!r} is not built: call the layer once")
    parts = _parts(layer) if what == "from_keras" else {part.name: part for part, _ in _layout(layer)}
    for name, part in parts.items():
        check_plain_keras(part, name)
    trained = len(layer.trainable_weights)
    if trained not in (0, len(layer.weights)):
        raise ArgumentError(
            f"{what}: expected all weights to be trainable, or none. Received: {trained} of {len(layer.weights)}. Set "
            "layer.trainable before, and freeze parts of the result"
        )


def _parts(layer: Any) -> Parts:
    """Find the sublayers of the Keras layer; only one of the two Keras classes has public names for them."""
    found = {name: getattr(layer, f"_{name}_dense") for name in ("query", "key", "value", "output")}
    gate = getattr(layer, "_gate_dense", None)
    return found if gate is None else found | {"gate": gate}


def _layout(ours: MultiHeadAttention) -> list[tuple[Any, tuple[str, ...]]]:
    """Return pairs (a sublayer of ours, the names of the Keras sublayers whose weights it joins)."""
    separate = [(getattr(ours, name[0]), (name,)) for name in ("query", "key", "value")] if not ours.is_fused else []
    found: list[tuple[Any, tuple[str, ...]]] = [*separate, (ours.out, ("output",))]
    if ours.is_fused:
        found.append((ours.qkv, ("query", "key", "value")))
    if ours.gate is not None:
        found.append((ours.gate, ("gate",)))
    return found


def _check_options(config: dict[str, Any], parts: Parts) -> None:
    """Raise ArgumentError if the Keras layer has an option that our layer does not have."""
    for name in ("kernel", "bias", "activity"):
        for kind in ("regularizer", "constraint"):
            if config.get(f"{name}_{kind}") is not None:
                raise ArgumentError(
                    f"{name}_{kind}: expected None, because layers of headwise.keras have none. Received: "
                    f"{config[f'{name}_{kind}']['class_name']}"
                )
    if (size := config.get("sliding_window")) is not None:
        raise ArgumentError(
            f"sliding_window: expected None. Received: sliding_window={size}. Convert the layer without it, and "
            f"pass attention_mask=masks.window({size - 1}, {size - 1}, offset=0) to each call"
        )
    if config.get("use_gate") and config["use_bias"]:
        raise ArgumentError(
            "use_gate: expected use_bias=False, because the gate has no bias here. Received: use_bias=True"
        )
    input_rank = len(parts["query"].equation.split(",")[0])
    ranks = {len(part.kernel.shape) for part in parts.values()}
    if tuple(config.get("attention_axes") or (1,)) != (1,) or ranks != {3} or input_rank != 3:
        raise ArgumentError(
            "attention_axes, output_shape: expected attention along axis 1 of inputs [B, S, M], and outputs [B, S, M]. "
            f"Received: attention_axes={config.get('attention_axes')}, output_shape={config.get('output_shape')}"
        )
    widths = [int(parts["query"].kernel.shape[0]), int(parts["output"].kernel.shape[-1])]
    if widths[0] != widths[1]:
        raise ArgumentError(
            f"output_shape: expected the width of the queries, {widths[0]}. Received: output_shape={widths[1]}"
        )


def _matrix(kernel: Any, *, into_heads: bool) -> np.ndarray:
    """Reshape a kernel [M, H, D] to a matrix [M, H · D]; or an output projection [H, D, M] to [H · D, M]."""
    values = _array(kernel)
    return values.reshape(values.shape[0], -1) if into_heads else values.reshape(-1, values.shape[-1])


def _array(x: Any) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(ops.cast(x, precision(x))))
