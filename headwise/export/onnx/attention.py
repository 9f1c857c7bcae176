"""How attention is written in ONNX: as the standard operator `Attention`, or as primitive operators ("plain")."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from headwise.errors import shortened
from headwise.language import Sentence

Form = Literal["op", "plain"]
Asked = Literal["auto", "op", "plain"]

# Attention exists since opset 23. Plain graphs are for older runtimes: opset 20 is the first with Gelu.
OPSETS: dict[Form, int] = {"op": 23, "plain": 20}


def choose(asked: Asked) -> tuple[Form, Sentence]:
    """Choose how attention is written: return "op" or "plain", and a sentence that says why.

    Args:
        asked: "op", "plain", or "auto" = "op" if the installed ONNX Runtime computes it correctly, else "plain".
    """
    op, plain = (
        Sentence("Attention is the standard operator (opset {opset}): {why}."),
        Sentence("Attention consists of plain operators (opset {opset}): {why}."),
    )
    if asked != "auto":
        return asked, (op if asked == "op" else plain).format(opset=OPSETS[asked], why=Sentence("as requested"))
    import onnxruntime

    reason, version = wrong_with_op(), f"ONNX Runtime {onnxruntime.__version__}"
    if reason is None:
        why = Sentence("{version} computes it correctly").format(version=version)
        return "op", op.format(opset=OPSETS["op"], why=why)
    why = Sentence("with the operator Attention, {version} {reason}").format(version=version, reason=reason)
    return "plain", plain.format(opset=OPSETS["plain"], why=why)


def translations(form: Form) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the table that tells `torch.onnx.export` how to write PyTorch's attention in ONNX.

    The table maps PyTorch's function to our function that writes it in ONNX. PyTorch's own translation to plain
    operators (torch 2.13) masks with the smallest number of the dtype instead of -inf, so a query that may attend to no
    key would get the mean of all values instead of 0.
    """
    return {torch.ops.aten.scaled_dot_product_attention.default: _write_op if form == "op" else _write_plain}


def _write_op(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Write the operator `Attention`, as PyTorch's own translation does, but with a mask row for each query.

    The standard allows a mask with a single row to be broadcast, but ONNX Runtime 1.31 refuses such a mask.
    """
    import onnxscript

    op: Any = onnxscript.opset23  # its type hints do not cover symbolic tensors
    if attn_mask is not None and attn_mask.shape[-2] == 1 and query.shape[-2] != 1:
        one = op.Constant(value_ints=[1])
        rows = op.Shape(query, start=2, end=3)
        attn_mask = op.Expand(attn_mask, op.Concat(one, rows, one, axis=0))
    out, *_ = op.Attention(query, key, value, attn_mask, scale=scale, is_causal=int(is_causal))
    return out


def _write_plain(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Write softmax(scale · q kᵀ + mask) v by plain operators, with 0 for a query that may attend to no key."""
    import onnxscript

    op: Any = onnxscript.opset20

    def integers(*numbers: int) -> Any:
        return op.Constant(value_ints=list(numbers))

    def number(x: float) -> Any:
        return op.CastLike(op.Constant(value_float=x), query)

    if enable_gqa and (groups := query.shape[1] // key.shape[1]) > 1:  # consecutive query heads share a key head
        copies = integers(1, 1, groups, 1, 1)
        key, value = (
            op.Reshape(op.Expand(op.Unsqueeze(x, integers(2)), copies), integers(0, query.shape[1], -1, x.shape[-1]))
            for x in (key, value)
        )
    scaled = op.Mul(query, number(query.shape[-1] ** -0.5 if scale is None else scale))
    scores = op.MatMul(scaled, op.Transpose(key, perm=[0, 1, 3, 2]))
    if is_causal:
        zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
        rows, cols = (op.Range(zero, op.Squeeze(op.Shape(x, start=2, end=3)), one) for x in (query, key))
        seen = op.LessOrEqual(op.Unsqueeze(cols, integers(0)), op.Unsqueeze(rows, integers(1)))
        return op.MatMul(op.Softmax(op.Where(seen, scores, number(-math.inf)), axis=-1), value)
    if attn_mask is None:
        return op.MatMul(op.Softmax(scores, axis=-1), value)
    if str(attn_mask.dtype) == "BOOL":
        scores = op.Where(attn_mask, scores, number(-math.inf))
        most = op.ReduceMax(op.Cast(attn_mask, to=6), integers(-1))  # 6 is INT32
        empty = op.Equal(most, op.Cast(op.Constant(value_int=0), to=6))
    else:
        scores = op.Add(scores, attn_mask)
        empty = op.Equal(op.ReduceMax(attn_mask, integers(-1)), number(-math.inf))
    return op.Where(empty, number(0.0), op.MatMul(op.Softmax(scores, axis=-1), value))


@functools.cache
def wrong_with_op() -> Sentence | None:
    """Test the operator `Attention` of the installed ONNX Runtime. Return what it does wrong, or None if it is correct.

    The result is the end of a sentence, such as "refuses grouped heads (…)". The test runs small calls of each kind
    that models make and compares them with PyTorch: grouped heads, values of another dimension, causal and other masks,
    biases, and a query that may attend to no key, whose output must be 0.
    """
    for name, tensors, is_causal in _calls():
        q, k, v, *mask = tensors
        added = mask[0] if mask else None
        expected = scaled_dot_product_attention(q, k, v, added, is_causal=is_causal, enable_gqa=True)
        try:
            given = _run_op([tensor.numpy() for tensor in tensors], is_causal)
        except Exception as cause:  # ONNX Runtime's errors have no common class
            told = shortened(" ".join(str(cause).split()), 120)
            return Sentence("refuses {name} ({error})").format(name=Sentence(name), error=told)
        if not np.allclose(given, expected.numpy(), atol=1e-5):
            return Sentence("computes wrong results for {name}").format(name=Sentence(name))
    return None


def _calls() -> Iterator[tuple[str, list[torch.Tensor], bool]]:
    """Yield calls to test: (name of the kind, tensors q, k, v and optionally a mask or bias, whether it is causal)."""
    drawn = torch.Generator().manual_seed(0)

    def qkv(rows: int = 5) -> list[torch.Tensor]:
        shapes = ((2, 4, rows, 8), (2, 2, 7, 8), (2, 2, 7, 6))
        return [torch.randn(shape, generator=drawn) for shape in shapes]

    yield "grouped heads", qkv(), False
    yield "a causal mask", qkv(7), True
    some = torch.rand(2, 1, 5, 7, generator=drawn) > 0.4
    some[..., 0] = True
    yield "a mask for each example", [*qkv(), some], False
    yield "a mask for each head", [*qkv(), torch.cat([some[:1]] * 4, 1)], False
    none = some.clone()
    none[0, 0, 2] = False
    yield "a query that may attend to nothing", [*qkv(), none], False
    yield "a bias", [*qkv(), torch.randn(1, 4, 5, 7, generator=drawn).masked_fill(~some[:1], -torch.inf)], False
    yield "one query", [*qkv(1), some[:, :, :1]], False


def _run_op(arrays: list[np.ndarray], is_causal: bool) -> np.ndarray:
    import onnx
    import onnxruntime
    from onnx import helper

    names = ["q", "k", "v", "mask"][: len(arrays)]
    types = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in arrays]
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(names, types, strict=True)]
    output = helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, None)
    node = helper.make_node("Attention", names, ["out"], is_causal=int(is_causal))
    graph = helper.make_graph([node], "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSETS["op"])], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (out,) = session.run(None, dict(zip(names, arrays, strict=True)))
    return np.asarray(out)
