"""Makes the steps of `MultiHeadAttention`: projections, positions, scores, softmax, weighted sums, output."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwise.errors import WorksheetError
from headwise.language import Sentence
from headwise.nn import MultiHeadAttention
from headwise.nn.positions import Alibi, Positions, Rope, Rope2D, ShawRelative, T5Buckets
from headwise.worksheet import distances, rotary, softmax
from headwise.worksheet.builder import Builder, check_heads, side_by_side
from headwise.worksheet.description import Axis, Kind, Matrix, numbered
from headwise.worksheet.parts import check_linear, in_rows, normalised, projection

NAMES = {
    "q": ("Q", "queries", "what each token is looking for"),
    "k": ("K", "keys", "what each token can be found by"),
    "v": ("V", "values", "what each token passes to those that attend to it"),
}


@dataclass(frozen=True)
class Reading:
    """The allowed query-key pairs of one call of attention, and the positions of its tokens."""

    allowed: NDArray[np.bool_]  # [H or 1, Q, K], True = may attend
    query_ids: Tensor | None = None  # [Q], or [Q, 2] (row, column); None = not needed
    key_ids: Tensor | None = None


def attention(
    b: Builder,
    module: MultiHeadAttention,
    x: Matrix,
    memory: Matrix | None,
    values: Matrix | None,
    reading: Reading,
    *,
    output: str = "Y",
    kind: Kind = "result",
) -> Matrix:
    """Add all worksheet steps of multi-head attention, and return the output.

    x, memory, values: the inputs of queries, of keys and of values; None = the input before it in this list.
    """
    check_heads(module.num_heads)
    _check_positions(module)
    keys = x if memory is None else memory
    values = keys if values is None else values
    q = _projected(b, module, "q", x)
    k = _projected(b, module, "k", keys)
    v = _projected(b, module, "v", values)
    if module.q_norm is not None:
        assert module.k_norm is not None
        q = normalised(b, module.q_norm, q, [f"{b.local(each)}_normed" for each in q], "q", "Norm of the queries")
        k = normalised(b, module.k_norm, k, [f"{b.local(each)}_normed" for each in k], "k", "Norm of the keys")
    q, k, bias, at = _positioned(b, module, q, k, reading, memory is None)
    # In self-attention, the tokens are queries along the rows, and keys along the columns.
    rows, cols = x.rows.lettered("Q"), keys.rows.lettered("K")
    q, k, v = read_as(q, rows), read_as(k, cols), read_as(v, cols)
    sinks = None if module.sinks is None else module.sinks.detach().double().numpy()
    options = softmax.Options(_scale(module), module.softcap, sinks)
    a, z = softmax.attended(b, q, k, v, allowed=reading.allowed, options=options, bias=bias)
    if isinstance(module.positions, ShawRelative) and module.positions.uses_values:
        assert at is not None
        z = distances.shaw_values(b, module.positions, at, a, z)
    joined = softmax.concatenated(b, z)
    if module.gate is not None:
        joined = _gated(b, module, x, joined)
    return _output(b, module, joined, x, output, kind)


def _projected(b: Builder, module: MultiHeadAttention, which: str, x: Matrix) -> list[Matrix]:
    """Add a worksheet step for a projection ("q", "k" or "v"); return its result for each head, [S × D] or [S × E]."""
    name, words, what = NAMES[which]
    heads = module.num_heads if which == "q" else module.num_kv_heads
    width = module.value_head_dim if which == "v" else module.head_dim
    cols = numbered("E" if which == "v" else "D", width)
    weight, bias = _weights(module, which)
    groups: list[list[Matrix]] = []
    if module.projection == "shared":
        return _shared(b, x, weight, cols, heads, which)
    for h in range(heads):
        own = slice(h * width, (h + 1) * width)
        groups.append(projection(b, x, weight[own], None if bias is None else bias[own], cols, name, f"_{h + 1}"))
    fewer = (
        Sentence(" There are {heads} for {num_heads} query heads.").format(heads=heads, num_heads=module.num_heads)
        if heads < module.num_heads
        else ""
    )
    b.step(
        words.capitalize(),
        Sentence("Each head computes {words} from every token: {what}.{fewer}").format(
            words=words, what=what, fewer=fewer
        ),
        f"{name}ₕ = {x.name} W_{name},ₕ" + ("" if bias is None else f" + b_{name},ₕ"),
        *in_rows(*groups),
    )
    return [group[-1] for group in groups]


def _shared(b: Builder, x: Matrix, weight: Tensor, cols: Axis, heads: int, which: str) -> list[Matrix]:
    """Add a worksheet step for a projection that all heads share: head h projects only its own columns of x."""
    name, words, _ = NAMES[which]
    width = len(cols)
    matrix = b.given("parameter", f"W_{name}", weight.mT, numbered("D", width, "in"), cols)
    groups, made = [], []
    for h in range(heads):
        texts = [f"{x.name}[i,{h * width + d + 1}]" for d in range(width)]
        own = b.cells(f"X_{which}_{h + 1}", x.rows, matrix.rows, *texts)
        made.append(b.whole(f"{name}_{h + 1}", x.rows, cols, f"MMULT({own.name},{matrix.name})"))
        groups.append([own, made[-1]])
    b.step(
        words.capitalize(),
        Sentence(
            "Each head takes its own columns of the input; one small matrix, the same for all heads, computes {words} "
            "from them."
        ).format(words=words),
        Sentence("{name}ₕ = {input}[:, columns of h] W_{name}").format(name=name, input=x.name),
        [matrix],
        *side_by_side(groups),
    )
    return made


def _weights(module: MultiHeadAttention, which: str) -> tuple[Tensor, Tensor | None]:
    """Return the weight [out, in] and the bias of a projection: "q", "k" or "v"."""
    if not module.is_fused:
        own = check_linear(getattr(module, which), which)
        return own.weight, own.bias
    fused = check_linear(module.qkv, "qkv")
    at, sizes = "qkv".index(which), module.projection_sizes
    rows = slice(sum(sizes[:at]), sum(sizes[: at + 1]))
    return fused.weight[rows], None if fused.bias is None else fused.bias[rows]


def _scale(module: MultiHeadAttention) -> float | str:
    return f"1/SQRT({module.head_dim})" if module.scale is None else module.scale


def _check_positions(module: MultiHeadAttention) -> None:
    known = (Rope, Rope2D, Alibi, T5Buckets, ShawRelative)
    if module.positions is not None and type(module.positions) not in known:
        raise WorksheetError(
            f"a worksheet does not show positions of type {type(module.positions).__name__}; expected one of "
            + ", ".join(each.__name__ for each in known)
        )


def _positioned(
    b: Builder, module: MultiHeadAttention, q: list[Matrix], k: list[Matrix], reading: Reading, itself: bool
) -> tuple[list[Matrix], list[Matrix], list[Matrix], Matrix | None]:
    """Add worksheet steps that apply positions; return (queries, keys, bias of each head, rows of Shaw's tables).

    The bias is [] and the rows are None if the position scheme has none.
    """
    scheme = module.positions
    if scheme is None:
        return q, k, [], None
    assert reading.query_ids is not None
    assert reading.key_ids is not None
    if isinstance(scheme, Rope | Rope2D):
        return *_rotated(b, scheme, q, k, reading, itself), [], None
    distance = distances.distances(
        b, reading.query_ids, reading.key_ids, q[0].rows.lettered("Q"), k[0].rows.lettered("K")
    )
    if isinstance(scheme, Alibi):
        return q, k, distances.alibi(b, scheme, distance), None
    if isinstance(scheme, T5Buckets):
        return q, k, distances.t5(b, scheme, distance), None
    assert isinstance(scheme, ShawRelative)
    bias, at = distances.shaw(b, scheme, distance, q, _scale(module))
    return q, k, bias, at


def _rotated(
    b: Builder, scheme: Rope | Rope2D, q: list[Matrix], k: list[Matrix], reading: Reading, itself: bool
) -> tuple[list[Matrix], list[Matrix]]:
    assert reading.query_ids is not None
    assert reading.key_ids is not None
    if scheme.depends_on_length and len(q[0].rows) != len(k[0].rows):
        raise WorksheetError(
            "positions: a worksheet shows one table of frequencies, but those of DynamicNTK depend on the length, "
            "which differs for queries and keys. Use another scaling"
        )
    theta, amplitude = rotary.frequencies(b, scheme, len(q[0].rows))
    if itself:
        query_turn = key_turn = rotary.make_turn(b, scheme, reading.query_ids, q[0].rows, theta, amplitude)
    else:
        query_turn = rotary.make_turn(b, scheme, reading.query_ids, q[0].rows, theta, amplitude, "_q")
        key_turn = rotary.make_turn(b, scheme, reading.key_ids, k[0].rows, theta, amplitude, "_k")
    made = []
    for words, heads, turn in ((Sentence("queries"), q, query_turn), (Sentence("keys"), k, key_turn)):
        turned = rotary.turned(b, heads, turn, [f"{b.local(each)}_turned" for each in heads])
        b.step(
            Sentence("Rotate the {words}").format(words=words),
            Sentence(
                "Each pair of dimensions is rotated by the token's angle, so that a score depends on the distance of "
                "two tokens are. {pairs_in_words}"
            ).format(pairs_in_words=rotary.pairs_in_words(turn, len(heads[0].cols))),
            "(a, b) → (a cos φ − b sin φ,  b cos φ + a sin φ)",
            *side_by_side([each] for each in turned),
        )
        made.append(turned)
    return made[0], made[1]


def _gated(b: Builder, module: MultiHeadAttention, x: Matrix, joined: Matrix) -> Matrix:
    gate = check_linear(module.gate, "gate")  # type: ignore[arg-type]
    shown = projection(b, x, gate.weight, None, joined.cols, "Gate", result="Gate_scores")
    share = b.cells("Gate", joined.rows, joined.cols, f"1/(1+EXP(-{shown[-1].name}[i,j]))")
    made = b.cells("Z_gated", joined.rows, joined.cols, f"{joined.name}[i,j]*{share.name}[i,j]")
    b.step(
        "Gate",
        "A sigmoid gate, computed from the query's input, scales each number.",
        "Z = Z ⊙ sigmoid(X W_gate)",
        shown,
        [share, made],
    )
    return made


def _output(b: Builder, module: MultiHeadAttention, z: Matrix, x: Matrix, name: str, kind: Kind) -> Matrix:
    out = check_linear(module.out, "out")
    cols = x.cols if len(x.cols) == module.dim else numbered("M", module.dim)
    shown = projection(b, z, out.weight, out.bias, cols, "O", kind=kind, result=name)
    b.step(
        "Output",
        "One more matrix combines the heads' outputs and maps them to the width of the model.",
        "Y = Z W_O" + ("" if out.bias is None else " + b_O"),
        *in_rows(shown),
    )
    return shown[-1]


def make_ids(scheme: Positions | None, length: int, real: Tensor | None, given: Tensor | None) -> Tensor | None:
    """Return the positions of a sequence: `given`, or counted over the `real` tokens [S]; None without a scheme."""
    if scheme is None:
        return None
    if given is not None:
        return given[0] if given.ndim > (2 if isinstance(scheme, Rope2D) else 1) else given
    if real is not None:
        return (real.long().cumsum(0) - 1).clamp(min=0)
    return torch.arange(length)


def read_as(heads: list[Matrix], rows: Axis) -> list[Matrix]:
    """Return the same matrices with other row labels, to use them as queries or keys in the next steps."""
    return [replace(each, rows=rows) for each in heads]
