"""Makes the steps of position schemes that add to scores by distance: ALiBi, T5's buckets, Shaw's vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from headwise.language import Sentence
from headwise.nn.positions import Alibi, ShawRelative, T5Buckets
from headwise.worksheet.builder import Builder, side_by_side
from headwise.worksheet.description import ONE, Axis, Matrix, numbered


def distances(b: Builder, query_ids: Tensor, key_ids: Tensor, rows: Axis, cols: Axis) -> Matrix:
    """Add a worksheet step for distances; return the position of each key minus that of each query, [Q × K]."""
    queries = b.given("positions", "Position_q", query_ids, rows, digits=0)
    keys = b.given("positions", "Position_k", key_ids, ONE, cols, digits=0)
    made = b.cells("Distance", rows, cols, f"{keys.name}[1,j]-{queries.name}[i,1]", digits=0)
    b.step(
        "Distances",
        "The distance of each key from each query: + if the key comes later, − if it comes earlier.",
        "distance = position of the key − position of the query",
        [queries],
        [keys],
        [made],
    )
    return made


def alibi(b: Builder, scheme: Alibi, distance: Matrix) -> list[Matrix]:
    """Add a worksheet step for ALiBi; return its bias for each head, −slope · |distance|, [Q × K]."""
    heads = numbered("H", scheme.num_heads, "head ")
    most = b.option("Alibi_max_bias", scheme.max_bias)
    below = 2 ** math.floor(math.log2(scheme.num_heads))
    powers = [f"{h}/{below}" for h in range(1, below + 1)]
    powers += [f"{h}/{2 * below}" for h in range(1, 2 * below + 1, 2)]  # every second slope of the next power of two
    texts = [f"2^(-{most.name}*{power})" for power in powers[: scheme.num_heads]]
    slopes = b.cells("Slopes", ONE, heads, *texts, digits=4)
    made = [
        b.cells(f"Bias_{h + 1}", distance.rows, distance.cols, f"-{slopes.name}[1,{h + 1}]*ABS({distance.name}[i,j])")
        for h in range(scheme.num_heads)
    ]
    b.step(
        "ALiBi",
        "The score falls with the distance, times a slope that differs for each head.",
        "Bₕ = −mₕ · |distance|,  mₕ = 2^(−8h/H)",
        [most],
        [slopes],
        *side_by_side([each] for each in made),
    )
    return made


def t5(b: Builder, scheme: T5Buckets, distance: Matrix) -> list[Matrix]:
    """Add worksheet steps for T5's bias; return it per head: a learned number per bucket of distances, [Q × K]."""
    per_side = scheme.num_buckets // 2 if scheme.bidirectional else scheme.num_buckets
    exact = per_side // 2
    away = "ABS({d})" if scheme.bidirectional else "MAX(0,-({d}))"
    away = away.format(d=f"{distance.name}[i,j]")
    ratio = f"LN(MAX({exact},{away})/{exact})/LN({scheme.max_distance}/{exact})"
    far = f"{exact}+MIN({per_side - 1 - exact},INT({ratio}*{per_side - exact}))"
    after = f"+IF({distance.name}[i,j]>0,{per_side},0)" if scheme.bidirectional else ""
    buckets = b.cells("Bucket", distance.rows, distance.cols, f"IF({away}<{exact},{away},{far}){after}", digits=0)
    b.step(
        "T5 buckets",
        Sentence("Distances up to {exact} have one bucket each; larger distances share buckets.").format(
            exact=exact - 1
        ),
        "bucket of each distance",
        [buckets],
    )
    rows = Axis("W", tuple(Sentence("bucket {i}").format(i=i) for i in range(scheme.num_buckets)))
    heads = numbered("H", scheme.num_heads, "head ")
    table = b.given("parameter", "T5_table", scheme.relative_attention_bias.weight, rows, heads)
    made = [
        b.cells(f"Bias_{h}", distance.rows, distance.cols, f"INDEX({table.name},{buckets.name}[i,j]+1,{h})")
        for h in range(1, scheme.num_heads + 1)
    ]
    b.step(
        "T5 bias",
        "Each head has a learned number for each bucket, which is looked up.",
        "Bₕ = table[bucket, h]",
        [table],
        *side_by_side([each] for each in made),
    )
    return made


def shaw(
    b: Builder, scheme: ShawRelative, distance: Matrix, q: Sequence[Matrix], scale: float | str
) -> tuple[list[Matrix], Matrix]:
    """Add a worksheet step for Shaw's relative keys; return (bias, the table row of each query-key pair [Q × K]).

    The bias of each head is scale · q · a^K [Q × K], with the learned vector a^K of the distance.
    """
    kinds = Axis("W", tuple(f"{i:+d}" if i else "0" for i in range(-scheme.left, scheme.right + 1)))
    clipped = f"MAX({-scheme.left},MIN({scheme.right},{distance.name}[i,j]))+{scheme.left + 1}"
    at = b.cells("Distance_row", distance.rows, distance.cols, clipped, digits=0)
    table = b.given("parameter", "Distance_keys", scheme.distance_embedding.weight, kinds, q[0].cols)
    factor = b.option("Scale_of_distances", scale)
    made = []
    for h, each in enumerate(q, start=1):
        text = f"{factor.name}*SUMPRODUCT({each.name}[i,:],INDEX({table.name},{at.name}[i,j],0))"
        made.append(b.cells(f"Bias_{h}", distance.rows, distance.cols, text))
    b.step(
        "Shaw's relative keys",
        "Each distance has a learned vector, which the query is multiplied with like a key. Large distances share one.",
        "Bₕ = scale · q · a[distance]",
        [factor],
        [at],
        [table],
        *side_by_side([each] for each in made),
    )
    return made, at


def shaw_values(b: Builder, scheme: ShawRelative, at: Matrix, a: Sequence[Matrix], z: Sequence[Matrix]) -> list[Matrix]:
    """Add the worksheet step that adds to values a learned vector for each distance; return the outputs of the heads.

    `at`: the table row of each query-key pair; `a`: the weights of each head; `z`: the outputs without these vectors.
    """
    assert scheme.value_embedding is not None
    kinds = Axis("W", tuple(f"{i:+d}" if i else "0" for i in range(-scheme.left, scheme.right + 1)))
    table = b.given("parameter", "Distance_values", scheme.value_embedding.weight, kinds, z[0].cols)
    groups, made = [], []
    for h, (weights, each) in enumerate(zip(a, z, strict=True), start=1):
        share = b.cells(f"By_distance_{h}", each.rows, kinds, f"SUMPRODUCT(({at.name}[i,:]=j)*{weights.name}[i,:])")
        total = b.whole(f"Z_with_distances_{h}", each.rows, each.cols, f"{each.name}+MMULT({share.name},{table.name})")
        groups.append([share, total])
        made.append(total)
    b.step(
        "Shaw's relative values",
        "The weights are summed by distance and multiplied with the learned vectors of the distances.",
        "Zₕ = Zₕ + (Σ of the weights at each distance) · a",
        [table],
        *side_by_side(groups),
    )
    return made
