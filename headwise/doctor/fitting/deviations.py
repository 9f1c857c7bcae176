"""The catalogue of wrong variants: each changes one decision, and has a name and a sentence with numbers to fill in."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from headwise.doctor.fitting.projections import Projections

ROLES = {"q": "queries", "k": "keys", "v": "values"}


@dataclasses.dataclass(frozen=True, eq=False)
class Deviation:
    """One decision that differs from the definition."""

    name: str  # of the finding
    sentence: str  # with numbers in {}: width, head_width, heads, kv_heads, and their roots
    change: Mapping[str, Any]  # fields of `Variant`
    moves: bool = False  # the output depends on the position of a token
    mixes: bool = False  # the output of an example depends on the others
    needs_rope: bool = False
    needs_alibi: bool = False
    needs_causal: bool = False
    rare: bool = False  # not tried in pairs
    convention: bool = False  # right for weights trained this way; wrong if not intended, or for other weights

    def told(self, numbers: Mapping[str, float]) -> str:
        """The sentence with its numbers."""
        return self.sentence.format(**numbers)


RARE_SCALES = ("fourth root", "heads", "length", "times sqrt(width)", "negative")


def _scales() -> Iterator[Deviation]:
    expected = "the head width is {head_width:.0f}, expected {root_head_width:.3f}"
    said = {
        "none": f"the scores are not divided at all; {expected}",
        "sqrt(width)": "the scores are divided by {root_width:.3f} = sqrt({width:.0f}), the model width; " + expected,
        "times sqrt(head width)": (
            "the scores are multiplied by {root_head_width:.3f} = sqrt({head_width:.0f}), where they should be divided "
            "by it"
        ),
        "head width": "the scores are divided by {head_width:.3f}, the head width (or twice by its square root); "
        + expected,
        "width": "the scores are divided by {width:.3f}, the model width; " + expected,
        "fourth root": "the scores are divided by {fourth_root:.3f}, the fourth root of the head width; " + expected,
        "sqrt(heads)": "the scores are divided by {root_heads:.3f} = sqrt({heads:.0f}), the number of heads; "
        + expected,
        "heads": "the scores are divided by {heads:.3f}, the number of heads; " + expected,
        "sqrt(length)": "the scores are divided by {root_length:.3f} = sqrt({length:.0f}), the number of keys; "
        + expected,
        "length": "the scores are divided by {length:.3f}, the number of keys; " + expected,
        "times sqrt(width)": "the scores are multiplied by {root_width:.3f} = sqrt({width:.0f}), the model width; "
        + expected,
        "negative": "the scores have the wrong sign",
    }
    for scale, sentence in said.items():
        yield Deviation("wrong-scale", sentence, {"scale": scale}, rare=scale in RARE_SCALES)


def _axes() -> Iterator[Deviation]:
    name = "softmax-axis"
    should = ", so that the weights of a query do not sum to 1; it should be taken over the keys"
    yield Deviation(name, f"the softmax is taken over the queries{should}", {"axis": "queries"})
    yield Deviation(name, f"the softmax is taken over the heads{should}", {"axis": "heads"})
    yield Deviation(name, f"the softmax is taken over the examples of the batch{should}", {"axis": "batch"}, mixes=True)
    text = f"the softmax is taken over batch and heads together{should}"
    yield Deviation(name, text, {"axis": "batch and heads"}, mixes=True)
    yield Deviation(name, f"the softmax is taken over all pairs of queries and keys{should}", {"axis": "all pairs"})
    name = "wrong-variant"
    yield Deviation(name, "the softmax is taken twice", {"axis": "twice"})
    # These may be intended.
    text = "there is no softmax: the values are weighted by the scores themselves"
    yield Deviation(name, text, {"axis": "none"}, convention=True)
    yield Deviation(name, "a sigmoid is used instead of the softmax", {"axis": "sigmoid"}, convention=True)
    yield Deviation(name, "a ReLU is used instead of the softmax", {"axis": "relu"}, convention=True)
    yield Deviation(name, "the values are weighted by the logarithm of the softmax", {"axis": "log"})


def _heads() -> Iterator[Deviation]:
    name = "head-split"
    bare = "[B, N, H·D] is viewed as [B, H, N, D] without a transpose, so that every head mixes positions"
    yield Deviation(name, bare, {"split": "view"}, moves=True)
    for roles in ("q", "k", "v", "qk", "kv", "qv"):
        which = " and ".join(ROLES[role] for role in roles)
        change = {"split": "view", "split_of": roles}
        yield Deviation(name, f"for the {which}, {bare}", change, moves=True, rare=True)
    text = "[B, N, H·D] is viewed as [B, H, D, N], so that every head mixes positions"
    yield Deviation(name, text, {"split": "view turned"}, moves=True)
    text = "the heads are never split: all {heads:.0f} act as one"
    yield Deviation(name, text, {"split": "one head"})
    text = "heads attend to heads: [B, N, H, D] is not transposed, so that a token attends only to itself"
    yield Deviation(name, text, {"split": "over heads", "merge": "over heads"})
    yield Deviation(name, text, {"split": "over heads", "merge": "over heads turned"}, moves=True)
    yield Deviation(name, text, {"split": "over heads", "merge": "heads"}, moves=True)
    for order in ("3 b h n", "b 3 h n", "b h n 3", "b h 3 n"):
        shape = order.upper().replace(" ", ", ")
        text = f"the fused projection [B, N, 3·H·D] is viewed as [{shape}, D] without a transpose"
        yield Deviation(name, text, {"split": order}, moves=True, mixes=order[0] == "3")
    name = "head-merge"
    text = "[B, H, N, D] is viewed as [B, N, H·D] without a transpose, so that positions and heads are mixed"
    yield Deviation(name, text, {"merge": "view"}, moves=True)
    for merge, shape in (
        ("turned view", "[B, H, D, N]"),
        ("inside out", "[B, D, H, N]"),
        ("batch inside", "[H, B, N, D]"),
    ):
        text = f"{shape} is viewed as [B, N, H·D], so that positions and heads are mixed"
        yield Deviation(name, text, {"merge": merge}, moves=True, mixes=merge == "batch inside")
    name = "batch-mixing"
    text = "[N, B, H, D] is viewed as [B, N, H·D], so that examples are mixed"
    yield Deviation(name, text, {"merge": "positions outside"}, moves=True, mixes=True)
    text = "batch and positions are swapped: [B, N, H·D] is viewed as [N, B·H, D], so that examples are mixed"
    yield Deviation(name, text, {"split": "batch second", "merge": "batch second"}, moves=True, mixes=True)
    yield Deviation(name, text, {"split": "batch second"}, moves=True, mixes=True)
    text = "heads stacked as [H·B] are split as [B·H], so that examples are mixed"
    for merge in ("heads outside", "own heads outside"):
        yield Deviation(name, text, {"merge": merge}, mixes=True)


def _grouped() -> Iterator[Deviation]:
    text = (
        "query heads share key heads in turn (head h uses key head h mod {kv_heads:.0f}) instead of in blocks "
        "(head h uses key head h // {group:.0f})"
    )
    yield Deviation("gqa-order", text, {"groups": "tiled"}, convention=True)


def _arguments(takes: str) -> Iterator[Deviation]:
    if takes == "self":
        return
    yield Deviation("argument-order", "the scores are k qᵀ instead of q kᵀ", {"transposed": True})
    for order in ("kqv", "qvk", "vkq", "kvq", "vqk"):
        moved = [(role, given) for role, given in zip("qkv", order, strict=True) if role != given]
        parts = ", ".join(f"the projected {ROLES[given]} are used as the {ROLES[role]}" for role, given in moved)
        yield Deviation("argument-order", parts, {"inputs": order, "weights": order})
    letters = "qkv" if takes == "qkv" else "qk"
    said = {"q": "query", "k": "key", "v": "value"} if takes == "qkv" else {"q": "first input", "k": "memory"}
    usual = "qkv" if takes == "qkv" else "qkk"
    for order in map("".join, itertools.product(letters, repeat=3)):
        if order == usual:
            continue
        wrong = [(role, given) for role, given, right in zip("qkv", order, usual, strict=True) if given != right]
        parts = " and ".join(f"{ROLES[role]} are computed from the {said[given]}" for role, given in wrong)
        yield Deviation("argument-order", parts, {"inputs": order}, rare=_is_rare(order))


def _projections(projections: Projections) -> Iterator[Deviation]:
    names = projections.names
    present = [role for role in "qkv" if role in names]
    fused = projections.kind == "fused"
    if projections.certain and len(present) == 3:
        for order in map("".join, itertools.product("qkv", repeat=3)):
            if order == "qkv":
                continue
            wrong = [(role, used) for role, used in zip("qkv", order, strict=True) if role != used]
            parts = " and ".join(f"{ROLES[role]} are computed by {_called(projections, used)}" for role, used in wrong)
            permuted = len(set(order)) == 3
            name = ("qkv-order" if fused else "argument-order") if permuted else "projection-reused"
            yield Deviation(name, parts, {"weights": order}, rare=_is_rare(order), convention=permuted)
    for role in present:
        at = "qkv".index(role)
        text = f"the {ROLES[role]} are the input itself: {_called(projections, role)} is not used"
        yield Deviation("unused-parameter", text, {"weights": "qkv"[:at] + "-" + "qkv"[at + 1 :]})
    if len(present) > 1:
        yield Deviation("unused-parameter", "queries, keys and values are the input itself", {"weights": "---"})
    if projections.oriented:
        for roles in ("q", "k", "v", "qk", "qkv", "o", "qkvo"):
            if all(role in names for role in roles):
                which = ", ".join(dict.fromkeys(_called(projections, role) for role in roles))
                text = f"the input is multiplied with the weights of {which} without the transpose"
                yield Deviation("wrong-variant", text, {"turned": roles}, rare=roles not in ("qkv", "o", "qkvo"))
    biases = {"q": projections.q_bias, "k": projections.k_bias, "v": projections.v_bias, "o": projections.o_bias}
    biased = [role for role in "qkvo" if biases[role] is not None]
    for roles in dict.fromkeys((*biased, "qkv", "qkvo")):
        if all(role in biased for role in roles):
            which = ", ".join(dict.fromkeys(_called(projections, role) for role in roles))
            text = f"the bias of {which} is never added"
            yield Deviation("unused-parameter", text, {"unbiased": roles}, rare=len(roles) > 1)
    if projections.o is not None:
        text = f"the heads are returned without the output projection {names['o']}"
        yield Deviation("output-projection-missing", text, {"output": "missing"})


def _is_rare(order: str) -> bool:
    """Whether two or more of the three are wrong, other than by a permutation or as "qqq"."""
    return len(set(order)) < 3 and sum(a != b for a, b in zip(order, "qkv", strict=True)) > 1 and order != "qqq"


def _called(projections: Projections, role: str) -> str:
    """`q_proj`, or the part of a fused projection."""
    name = projections.names[role]
    shared = sum(projections.names.get(other) == name for other in "qkv") > 1
    return f"the part of {name} for the {ROLES[role]}" if shared and role in ROLES else name


def _mixing() -> Iterator[Deviation]:
    text = "the weights are transposed: the values are summed over the queries, not over the keys"
    yield Deviation("weights-transposed", text, {"mixed": "queries"})
    text = "the values are summed without their weights, as in an einsum with two letters for the keys"
    yield Deviation("wrong-variant", text, {"mixed": "evenly"})
    text = "the scores are summed over the heads, so that all heads have the same weights"
    yield Deviation("wrong-variant", text, {"one_pattern": True})


def _norms() -> Iterator[Deviation]:
    name = "unused-parameter"
    yield Deviation(name, "the keys get the norm of the queries", {"norms": "qq"})
    yield Deviation(name, "the queries get the norm of the keys", {"norms": "kk"})
    yield Deviation(name, "the norm of the keys is not used", {"norms": "q-"})
    yield Deviation(name, "the norm of the queries is not used", {"norms": "-k"})
    yield Deviation(name, "the norms of queries and keys are not used", {"norms": "--"})
    yield Deviation("argument-order", "the norms of queries and keys are swapped", {"norms": "kq"})


def _positions() -> Iterator[Deviation]:
    name = "rope-pairing"
    text = "RoPE pairs column i with i + {half:.0f}, but its angles are laid out for neighbours"
    yield Deviation(name, text, {"rope.angles": "neighbours", "rope.pairing": "half"}, needs_rope=True)
    text = "RoPE pairs neighbouring columns, but its angles are laid out for halves"
    yield Deviation(name, text, {"rope.angles": "half", "rope.pairing": "neighbours"}, needs_rope=True)
    yield Deviation(
        name, "RoPE lacks its minus sign: columns are mixed, not rotated", {"rope.minus": False}, needs_rope=True
    )
    for pairing in ("half", "neighbours"):
        # Neighbours stay in one head, so scores still depend on the distance, with other frequencies in each head.
        change = {"rope.before_split": True, "rope.pairing": pairing, "rope.angles": pairing}
        split = "pairs are split between two heads" if pairing == "half" else "every head has other frequencies"
        text = f"RoPE is applied over the whole width, before the heads are split: {split}"
        yield Deviation(name, text, change, needs_rope=True, convention=pairing == "neighbours")
    name = "rope-asymmetric"
    yield Deviation(name, "RoPE rotates the queries, but not the keys", {"rope.on": "q"}, needs_rope=True)
    yield Deviation(name, "RoPE rotates the keys, but not the queries", {"rope.on": "k"}, needs_rope=True)
    yield Deviation(name, "RoPE also rotates the values", {"rope.on": "qkv"}, needs_rope=True)
    yield Deviation(name, "RoPE rotates the values instead of the keys", {"rope.on": "qv"}, needs_rope=True)
    yield Deviation(name, "RoPE rotates keys and values, but not the queries", {"rope.on": "kv"}, needs_rope=True)
    text = "RoPE rotates keys one way and queries the other"
    yield Deviation(name, text, {"rope.opposite": True}, needs_rope=True)
    name = "alibi-slopes"
    text = "the slopes of ALiBi are 2^(-8h/{heads:.0f}), which is correct only for powers of two"
    yield Deviation(name, text, {"alibi": "naive"}, needs_alibi=True)
    text = "the slopes of ALiBi begin at 1: heads are counted from 0, but in the paper from 1"
    yield Deviation(name, text, {"alibi": "from zero"}, needs_alibi=True)
    yield Deviation(name, "the slopes of ALiBi are in reverse order", {"alibi": "reversed"}, needs_alibi=True)
    text = "ALiBi raises the scores with the distance instead of lowering them"
    yield Deviation(name, text, {"alibi": "positive"}, needs_alibi=True)
    text = "ALiBi is added before the scores are scaled, so that its slopes are also scaled"
    yield Deviation(name, text, {"alibi": "scaled"}, needs_alibi=True)


def _causal() -> Iterator[Deviation]:
    name = "causal-leak"
    yield Deviation(name, "each query also attends to the next token", {"causal": "one ahead"}, needs_causal=True)
    text = "the causal mask is reversed: a query attends to the future, not to the past"
    yield Deviation(name, text, {"causal": "future"}, needs_causal=True)
    for fill in (-math.inf, -1e9):
        text = "the causal mask is reversed and also hides the token itself"
        change = {"causal": "strict future", "causal_fill": fill}
        yield Deviation(name, text, change, needs_causal=True)
        text = "a query does not attend to its own token; the first query has no allowed key"
        yield Deviation("causal-leak", text, {"causal": "strict", "causal_fill": fill}, needs_causal=True)
    text = "the causal mask is applied to the weights after the softmax, whose sum still includes the future"
    yield Deviation("mask-after-softmax", text, {"causal": "weights"}, needs_causal=True)
    text = "scores of the future are multiplied by 0 instead of set to -inf: they keep a weight"
    yield Deviation("mask-multiplied", text, {"causal_fill": 0.0}, needs_causal=True)
    for fill in (1e-9, -1e-9, -1.0, -2.0, -5.0, -10.0, -20.0, 1.0):
        text = f"scores of the future are set to {fill:g} instead of -inf: they keep a weight"
        yield Deviation("mask-fill-too-small", text, {"causal_fill": fill}, needs_causal=True)


def _masks() -> Iterator[Deviation]:
    yield Deviation("mask-ignored", "the mask has no effect", {"mask": "ignored"})
    yield Deviation("mask-polarity", "the mask is used with the opposite polarity", {"mask": "flipped"})
    for fill in (-1e9, -math.inf):
        text = "the mask hides queries instead of keys"
        yield Deviation("mask-broadcast", text, {"mask": "queries", "mask_fill": fill})
    name = "mask-added"
    yield Deviation(name, "1 is added to the allowed scores, and nothing is masked", {"mask": "added allowed"})
    yield Deviation(name, "1 is added to the forbidden scores", {"mask": "added forbidden"})
    yield Deviation(name, "1 is subtracted from the forbidden scores", {"mask": "subtracted"})
    text = "1 is added to the scores before they are scaled, and nothing is masked"
    yield Deviation(name, text, {"mask": "added before scale"})
    text = "1 is added to the forbidden scores before they are scaled"
    yield Deviation(name, text, {"mask": "added forbidden before scale"})
    text = "forbidden scores are multiplied by 0 instead of set to -inf: they keep a weight"
    yield Deviation("mask-multiplied", text, {"mask_fill": 0.0})
    text = "allowed scores are multiplied by 0, and nothing is masked"
    yield Deviation("mask-multiplied", text, {"mask": "multiplied flipped"})
    text = "the mask is applied to the weights after the softmax, so that they do not sum to 1"
    yield Deviation("mask-after-softmax", text, {"mask": "weights"})
    text = "the mask is applied to the weights after the softmax, with the opposite polarity"
    yield Deviation("mask-after-softmax", text, {"mask": "weights flipped"})
    for fill in (-1e9, -1e4, -math.inf, 1e-9, -1e20):
        text = f"weights after the softmax are set to {fill:g} where the mask forbids"
        yield Deviation("mask-after-softmax", text, {"mask": "weights filled", "mask_fill": fill})
    for fill in (1e-9, -1e-9, -1.0, -2.0, -5.0, -10.0, -20.0, 1.0):
        text = f"forbidden scores are set to {fill:g} instead of -inf: they keep a weight"
        yield Deviation("mask-fill-too-small", text, {"mask_fill": fill})
    text = "forbidden scores are set to a large positive number: only forbidden keys are attended to"
    yield Deviation("mask-polarity", text, {"mask_fill": 1e9})
    text = "the mask is repeated as [H·B], but the scores are [B·H]: heads get the masks of other examples"
    yield Deviation("mask-head-order", text, {"mask": "head order"})
    text = "the mask is repeated as [B·H], but the scores are [H·B]: heads get the masks of other examples"
    yield Deviation("mask-head-order", text, {"mask": "example order"})
    text = "the mask of the first example is used for all"
    yield Deviation("mask-broadcast", text, {"mask": "first example"})
    yield Deviation("mask-broadcast", "the mask of the first query is used for all", {"mask": "first query"})


MASKS: tuple[Deviation, ...] = tuple(_masks())
_FIXED: tuple[Deviation, ...] = tuple(
    itertools.chain(_scales(), _axes(), _heads(), _grouped(), _mixing(), _norms(), _positions(), _causal())
)


def catalogue(projections: Projections, takes: str) -> list[Deviation]:
    """The single deviations that can occur with these projections, except those of the mask (`MASKS`)."""
    return [*_projections(projections), *_FIXED, *_arguments(takes)]
