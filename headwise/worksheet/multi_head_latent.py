"""Makes the steps of `MultiHeadLatentAttention`: latents, norms, projections to heads, decoupled RoPE, output."""

from __future__ import annotations

from headwise.language import Sentence
from headwise.nn import MultiHeadLatentAttention
from headwise.worksheet import rotary, softmax
from headwise.worksheet.builder import Builder, check_heads, side_by_side
from headwise.worksheet.description import Axis, Kind, Matrix, numbered
from headwise.worksheet.multi_head import Reading, read_as
from headwise.worksheet.parts import check_linear, in_rows, normalised, projection


def latent_attention(
    b: Builder,
    module: MultiHeadLatentAttention,
    x: Matrix,
    reading: Reading,
    *,
    output: str = "Y",
    kind: Kind = "result",
) -> Matrix:
    """Add all worksheet steps of multi-head latent attention; return the output.

    The steps follow the path "expand": the keys and values of each head are computed.
    """
    check_heads(module.num_heads)
    assert reading.query_ids is not None
    theta, amplitude = rotary.frequencies(b, module.positions, len(x.rows))
    turn = rotary.make_turn(b, module.positions, reading.query_ids, x.rows, theta, amplitude)
    q = _queries(b, module, x, turn)
    latents, key = _latents(b, module, x, turn)
    k, v = _keys_and_values(b, module, latents, key)
    rows, cols = x.rows.lettered("Q"), x.rows.lettered("K")
    plain = module.positions.scaling is None and module.scale == module.head_dim**-0.5
    scale = f"1/SQRT({module.head_dim})" if plain else module.scale
    _, z = softmax.attended(
        *(b, read_as(q, rows), read_as(k, cols), read_as(v, cols)),
        allowed=reading.allowed,
        options=softmax.Options(scale),
    )
    joined = softmax.concatenated(b, z)
    out = check_linear(module.out, "out")
    shown = projection(b, joined, out.weight, out.bias, x.cols, "O", kind=kind, result=output)
    b.step("Output", "One more matrix combines the heads' outputs.", "Y = Z W_O", *in_rows(shown))
    return shown[-1]


def _queries(b: Builder, module: MultiHeadLatentAttention, x: Matrix, turn: rotary.Turn) -> list[Matrix]:
    """Add worksheet steps for the queries; return the queries of each head, [S × D], the last dimensions rotated."""
    cols = _head_dims(module)
    if module.q_rank is None:
        source, weight = x, check_linear(module.q, "q").weight
    else:
        down = check_linear(module.q_down, "q_down")
        rank = numbered("R'", module.q_rank, "r'")
        shown = projection(b, x, down.weight, down.bias, rank, "DQ", result="C_Q")
        b.step(
            "Compress the queries",
            Sentence("Queries are also computed from a short latent: {q_rank} numbers per token.").format(
                q_rank=module.q_rank
            ),
            "C_Q = X W_DQ",
            *in_rows(shown),
        )
        (source,) = normalised(b, module.q_norm, shown[-1:], ["C_Q_normed"], "C_Q", "Norm of the latent of queries")
        weight = check_linear(module.q_up, "q_up").weight
    parts = weight.unflatten(0, (module.num_heads, -1))
    groups = [
        projection(b, source, part, None, cols, "Q", f"_{h}", result=f"Q_{h}") for h, part in enumerate(parts, start=1)
    ]
    b.step(
        "Queries",
        Sentence(
            "Each head's query: {module.nope_dim} dimensions without position (n), then {module.rope_dim} that will "
            "be rotated (t)."
        ).format(module=module),
        f"Qₕ = {source.name} W_Q,ₕ",
        *groups,
    )
    heads = [group[-1] for group in groups]
    turned = rotary.turned(b, heads, turn, [f"{b.local(each)}_turned" for each in heads], start=module.nope_dim)
    b.step(
        "Rotate the queries",
        "Only the last dimensions are rotated by the token's position; the others stay the same.",
        "(a, b) → (a cos φ − b sin φ,  b cos φ + a sin φ)",
        *side_by_side([each] for each in turned),
    )
    return turned


def _latents(b: Builder, module: MultiHeadLatentAttention, x: Matrix, turn: rotary.Turn) -> tuple[Matrix, Matrix]:
    """Add worksheet steps for the latent; return (normalised latent [S × R], rotated key of all heads [S × T])."""
    down = check_linear(module.kv_down, "kv_down")
    rank = numbered("R", module.kv_rank)
    turns = numbered("T", module.rope_dim)
    bias = (None, None) if down.bias is None else down.bias.split((module.kv_rank, module.rope_dim))
    weights = down.weight.split((module.kv_rank, module.rope_dim))
    latent = projection(b, x, weights[0], bias[0], rank, "DKV", result="C_KV")
    key = projection(b, x, weights[1], bias[1], turns, "KR", result="K_shared")
    b.step(
        "Compress keys and values",
        Sentence(
            "Keys and values of all heads are computed from one latent, C_KV: {kv_rank} numbers per token. In "
            "addition there is one key for positions, which all heads share."
        ).format(kv_rank=module.kv_rank),
        "C_KV = X W_DKV,   K_shared = X W_KR",
        *in_rows(latent, key),
    )
    (normed,) = normalised(b, module.kv_norm, latent[-1:], ["C_KV_normed"], "C_KV", "Norm of the latent")
    (turned,) = rotary.turned(b, key[-1:], turn, ["K_shared_turned"])
    b.step(
        "Rotate the shared key",
        "Positions are kept out of the latent: rotated keys could not be computed from it by one matrix.",
        "(a, b) → (a cos φ − b sin φ,  b cos φ + a sin φ)",
        [turned],
    )
    cols = Axis("R+T", rank.labels + turns.labels)
    texts = [f"{normed.name}[i,{r + 1}]" for r in range(len(rank))]
    texts += [f"{turned.name}[i,{t + 1}]" for t in range(len(turns))]
    cache = b.cells("Cache", x.rows, cols, *texts)
    kept = module.kv_rank + module.rope_dim
    full = module.num_heads * (module.head_dim + module.value_head_dim)
    b.step(
        "What a cache holds",
        Sentence(
            "To continue the text later, only this is cached: {kept} numbers per token, while the keys and values of "
            "{num_heads} heads would be {full}."
        ).format(kept=kept, num_heads=module.num_heads, full=full),
        "cache = [C_KV normed, K_shared turned]",
        [cache],
    )
    return normed, turned


def _keys_and_values(
    b: Builder, module: MultiHeadLatentAttention, latent: Matrix, key: Matrix
) -> tuple[list[Matrix], list[Matrix]]:
    """Add worksheet steps that compute keys [S × D] and values [S × E] of each head from the latent; return both."""
    weight = check_linear(module.kv_up, "kv_up").weight.unflatten(0, (module.num_heads, -1))
    w_k, w_v = weight.split((module.nope_dim, module.value_head_dim), 1)
    nope = Axis("D", _head_dims(module).labels[: module.nope_dim])
    groups, keys = [], []
    for h, part in enumerate(w_k, start=1):
        up = projection(b, latent, part, None, nope, "UK", f"_{h}", result=f"K_up_{h}")
        texts = [f"{up[-1].name}[i,{d + 1}]" for d in range(module.nope_dim)]
        texts += [f"{key.name}[i,{t + 1}]" for t in range(module.rope_dim)]
        keys.append(b.cells(f"K_{h}", latent.rows, _head_dims(module), *texts))
        groups.append([*up, keys[-1]])
    b.step(
        "Keys",
        "Each head computes its key from the latent, and appends the shared, rotated key.",
        "Kₕ = [C_KV W_UK,ₕ ; K_shared turned]",
        *groups,
    )
    width = numbered("E", module.value_head_dim)
    groups = [projection(b, latent, part, None, width, "UV", f"_{h}", result=f"V_{h}") for h, part in enumerate(w_v, 1)]
    b.step("Values", "Each head computes its values from the same latent.", "Vₕ = C_KV W_UV,ₕ", *groups)
    return keys, [group[-1] for group in groups]


def _head_dims(module: MultiHeadLatentAttention) -> Axis:
    """Return the dimensions of a head as an axis: n1, n2 … carry no position; t1, t2 … are rotated."""
    plain = tuple(f"n{i}" for i in range(1, module.nope_dim + 1))
    return Axis("D", plain + tuple(f"t{i}" for i in range(1, module.rope_dim + 1)))
