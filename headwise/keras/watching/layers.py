"""Records the computations of Keras's attention layers, and of keras.ops.dot_product_attention in any layer.

The attention layers are MultiHeadAttention, GroupQueryAttention, Attention and their subclasses.

A computation is recorded only if it reproduces the layer's output. Layers are changed only during a call.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import torch

from headwise import masks
from headwise.call import AttentionCall, make_call
from headwise.capture.changes import changed, replaced
from headwise.capture.masks import Recognised
from headwise.capture.verify import wrong_output, wrong_weights
from headwise.errors import RecordError
from headwise.keras.to_torch import dense_mask, to_torch
from headwise.keras.watching.parts import Reader
from headwise.keras.watching.running import Running
from headwise.masks import Mask
from headwise.scope import Scope

Tensor = Any  # a tensor of the backend


@contextlib.contextmanager
def read_layers(reader: Reader, call: Running) -> Iterator[None]:
    """Return a context in which a call of a Keras attention layer reports its computation to the reader."""
    layer = call.layer
    if not reader.layers.has(layer):
        yield
        return
    with contextlib.ExitStack() as stack:
        if isinstance(layer, (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)):
            stack.enter_context(instead(layer, "_compute_attention", _multi_head(reader, layer)))
        elif isinstance(layer, keras.layers.Attention):
            pair: list[Tensor] = []
            stack.enter_context(instead(layer, "_calculate_scores", _scores(pair)))
            stack.enter_context(instead(layer, "_apply_scores", _weighted(reader, layer, pair)))
        yield


def _reading(original: Any) -> Any:
    @functools.wraps(original)
    def dot_product_attention(*args: Any, **kwargs: Any) -> Tensor:
        told = [each for each in _READERS.here() if not each.layers.is_reading and each.layers.here() is not None]
        with contextlib.ExitStack() as stack:
            for reader in told:
                stack.enter_context(reader.reading())
            out = original(*args, **kwargs)
        for reader in told:
            _read_operation(reader, inspect.signature(original).bind(*args, **kwargs).arguments, out)
        return out

    return dot_product_attention


_READERS: Scope[Reader] = Scope()


@contextlib.contextmanager
def read_operations(reader: Reader) -> Iterator[None]:
    """Return a context inside which keras.ops.dot_product_attention reports its computations to the reader."""
    # keras.ops looks up the function in this module at each call.
    change = functools.partial(replaced, keras.src.backend.nn, "dot_product_attention", _reading)
    with changed("keras.ops.dot_product_attention", change), _READERS.open(reader):
        yield


def _read_operation(reader: Reader, given: Mapping[str, Any], out: Tensor) -> None:
    how = "keras.ops.dot_product_attention"
    with reader.trying(how):
        q, k, v = (_by_head(given[name]) for name in ("query", "key", "value"))
        _read(
            *(reader, how, q, k, v, out),
            allowed=given.get("mask"),
            causal=bool(given.get("is_causal")),
            bias=given.get("bias"),
            scale=given.get("scale"),
            softcap=given.get("attn_logits_soft_cap"),
        )


@contextlib.contextmanager
def instead(layer: keras.layers.Layer, name: str, make: Callable[[Callable[..., Any]], Any]) -> Iterator[None]:
    """Return a context in which `make(method)` replaces this layer's method `name`, unnoticed by Keras's tracking."""
    attributes = vars(layer)
    mine, before = name in attributes, attributes.get(name)
    attributes[name] = make(getattr(layer, name))
    try:
        yield
    finally:
        if mine:
            attributes[name] = before
        else:
            del attributes[name]


# Readers of keras.layers.MultiHeadAttention and GroupQueryAttention.


def _multi_head(reader: Reader, layer: keras.layers.Layer) -> Callable[[Callable[..., Any]], Any]:
    def read(given: Mapping[str, Any], result: Any, how: str) -> None:
        if len(given["query"].shape) != 4:
            raise RecordError("attention over several axes has no matrix of queries and keys")
        q, k, v = (_by_head(given[name]) for name in ("query", "key", "value"))
        repeats = getattr(layer, "num_repeats", 1)  # grouped-query attention repeats the heads of its keys
        scale = getattr(layer, "_inverse_sqrt_key_dim", getattr(layer, "_inverse_sqrt_head_dim", None))
        dropout = getattr(layer, "dropout", 0.0) if given.get("training") else 0.0
        _read(
            *(reader, how, q, k[:, ::repeats], v[:, ::repeats], result[0]),
            allowed=given.get("attention_mask"),
            causal=bool(given.get("use_causal_mask")),
            scale=scale,
            dropout=float(dropout),
            weights=None if result[1] is None else to_torch(result[1]),
            projection=_output_kernel(layer),
        )

    return _heard(reader, layer, read)


def _heard(
    reader: Reader, layer: keras.layers.Layer, read: Callable[[Mapping[str, Any], Any, str], None]
) -> Callable[[Callable[..., Any]], Any]:
    """Make a function that wraps a method of a layer, so that `read` gets the arguments and result of each call."""

    def make(original: Callable[..., Any]) -> Any:
        how = f"keras.layers.{_library_name(layer)}"

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            with reader.reading():
                result = original(*args, **kwargs)
            with reader.trying(how):
                read(inspect.signature(original).bind(*args, **kwargs).arguments, result, how)
            return result

        return method

    return make


def _library_name(layer: keras.layers.Layer) -> str:
    """Return the name of the Keras class of a layer, or of the nearest Keras class that it inherits from."""
    name = next(cls for cls in type(layer).__mro__ if cls.__module__.startswith("keras.")).__name__
    return "GroupQueryAttention" if name == "GroupedQueryAttention" else name


def _output_kernel(layer: keras.layers.Layer) -> Tensor | None:
    """Return the output projection W_O [H, E, M]; None if there is none, or if a gate is before it."""
    kernel = getattr(getattr(layer, "_output_dense", None), "kernel", None)
    gated = getattr(layer, "_use_gate", False) or getattr(layer, "use_gate", False)
    return kernel if kernel is not None and len(kernel.shape) == 3 and not gated else None


def _by_head(x: Tensor) -> torch.Tensor:
    """Convert x [B, S, H, D] to a torch tensor [B, H, S, D], with the same `requires_grad`."""
    with torch.enable_grad():
        return to_torch(x).transpose(1, 2)


# Reader of keras.layers.Attention.


def _scores(pair: list[Tensor]) -> Callable[[Callable[..., Any]], Any]:
    def make(original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def _calculate_scores(query: Tensor, key: Tensor) -> Tensor:
            pair[:] = query, key
            return original(query, key)

        return _calculate_scores

    return make


def _weighted(reader: Reader, layer: keras.layers.Layer, pair: list[Tensor]) -> Callable[[Callable[..., Any]], Any]:
    def read(given: Mapping[str, Any], result: Any, how: str) -> None:
        if isinstance(layer, keras.layers.AdditiveAttention) or layer.score_mode != "dot":
            raise RecordError("its scores are a tanh of a sum, not a product q kᵀ")
        q, k, v = (to_torch(x)[:, None] for x in (*pair, given["value"]))
        dropout = float(layer.dropout) if given.get("training") else 0.0
        _read(
            *(reader, how, q, k, v, result[0]),
            allowed=given.get("scores_mask"),
            keys_only=True,
            scale=1.0 if layer.scale is None else float(to_torch(layer.scale)),
            dropout=dropout,
            weights=None if dropout else to_torch(result[1])[:, None],
            arrange=lambda x: x[:, None],
        )

    return _heard(reader, layer, read)


# Common to all readers.


def _read(
    reader: Reader,
    how: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: Tensor,
    *,
    allowed: Tensor | None = None,
    keys_only: bool = False,
    causal: bool = False,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    weights: torch.Tensor | None = None,
    projection: Tensor | None = None,
    arrange: Callable[[torch.Tensor], torch.Tensor] = lambda x: x.transpose(1, 2),
) -> None:
    """Report the call softmax(q kᵀ) v to the reader. RecordError unless it reproduces the layer's output `out`."""
    found = to_torch(out)
    given: dict[str, Any] = {
        "bias": None if bias is None else to_torch(bias),
        "scale": None if scale is None else float(scale),
        "softcap": softcap,
        "dropout": dropout,
    }
    wrong: str | None = None
    cells = None if allowed is None else _rank_4(to_torch(allowed).bool(), keys_only)
    for mask, rows in _readings(cells, causal, (*q.shape[:3], k.shape[2])):
        if rows is not None:
            given["bias"] = rows if given["bias"] is None else given["bias"] + rows
        call = make_call(q, k, v, mask=mask, **given)
        problem = _wrong(call, arrange(found), weights)
        if problem is None:
            reader.seen(call, found, arrange, how, projection)
            return
        wrong = wrong or problem
    raise RecordError(wrong or "nothing explains its output")


def _readings(
    cells: torch.Tensor | None, causal: bool, shape: tuple[int, ...]
) -> Iterator[tuple[Mask | None, torch.Tensor | None]]:
    """Yield what a layer's mask may mean for a query that may attend to no key, as (mask, bias to add to the scores).

    Such a query may give output 0 (a mask), or attend to all keys equally (a large negative bias).
    """
    along = masks.causal(offset=0) if causal else None
    if cells is None:
        yield along, None
        return
    if causal:
        q_len, k_len = shape[2:]
        cells = cells & torch.ones(q_len, k_len, dtype=torch.bool, device=cells.device).tril()
    yield dense_mask(cells, shape[2]), None
    if not bool(cells.any(-1).all()):
        yield Recognised().filled(~cells, torch.finfo(torch.float32).min, shape)


def _rank_4(allowed: torch.Tensor, keys_only: bool) -> torch.Tensor:
    """Reshape a mask [B, K] (if `keys_only`), [Q, K], [B, Q, K] or [B, H, Q, K] to [B|1, H|1, Q|1, K]."""
    if allowed.ndim == 2:
        return allowed[:, None, None] if keys_only else allowed[None, None]
    return allowed[:, None] if allowed.ndim == 3 else allowed


def _wrong(call: AttentionCall, out: torch.Tensor, weights: torch.Tensor | None) -> str | None:
    """Compare the call with what the layer computed: return how they differ; None if the call explains the layer."""
    if weights is not None:
        return wrong_weights(call, weights, call.q.dtype)
    return None if call.dropout else wrong_output(call, out)
