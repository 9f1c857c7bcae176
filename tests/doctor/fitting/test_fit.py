"""Hypothesis fitting: attention written out here, wrong in one or two ways, and named by what reproduces its output."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.calling.spec import Spec
from headwise.doctor.fitting.fit import Fit, fit
from headwise.doctor.fitting.search import _minimum
from headwise.doctor.patient import Patient

# What a switch of `Attention` below makes wrong: the name that is expected.
SINGLES = {
    "unscaled": "wrong-scale",
    "scale-width": "wrong-scale",
    "scale-multiplied": "wrong-scale",
    "scale-twice": "wrong-scale",
    "scale-odd": "wrong-scale",
    "axis-queries": "softmax-axis",
    "axis-heads": "softmax-axis",
    "axis-batch": "softmax-axis",
    "split-view": "head-split",
    "split-none": "head-split",
    "merge-view": "head-merge",
    "merge-turned": "head-merge",
    "batch-second": "batch-mixing",
    "no-output": "output-projection-missing",
    "k-for-v": "projection-reused",
    "q-for-k": "projection-reused",
    "kv-exchanged": "argument-order",
    "no-value-projection": "unused-parameter",
    "no-query-bias": "unused-parameter",
    "weights-transposed": "weights-transposed",
    "no-softmax": "wrong-variant",
    "matrix-transposed": "wrong-variant",
}
MASKED = {
    "mask-ignored": "mask-ignored",
    "mask-added": "mask-added",
    "mask-times-scores": "mask-multiplied",
    "mask-times-weights": "mask-after-softmax",
    "mask-fill-1e-9": "mask-fill-too-small",
    "mask-fill-10": "mask-fill-too-small",
    "mask-head-order": "mask-head-order",
    "mask-queries": "mask-broadcast",
    "mask-first-example": "mask-broadcast",
}
CAUSAL = {
    "causal-ahead": "causal-leak",
    "causal-reversed": "causal-leak",
    "causal-fill": "mask-fill-too-small",
    "causal-after": "mask-after-softmax",
}


class Attention(nn.Module):
    """Multi-head self-attention with a switch for each mistake."""

    def __init__(self, dim: int = 32, num_heads: int = 4, wrong: tuple[str, ...] = (), *, causal: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.wrong = frozenset(wrong)
        self.causal = causal
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, y: Tensor) -> Tensor:
        b, n, m = y.shape
        if "split-view" in self.wrong:
            return y.view(b, self.num_heads, n, -1)
        if "split-none" in self.wrong:
            return y.view(b, 1, n, m)
        if "batch-second" in self.wrong:
            return y.view(n, b * self.num_heads, -1).transpose(0, 1).view(b, self.num_heads, n, -1)
        return y.view(b, n, self.num_heads, -1).transpose(1, 2)

    def merge(self, y: Tensor) -> Tensor:
        b, _, n, _ = y.shape
        if "merge-view" in self.wrong:
            return y.reshape(b, n, -1)
        if "merge-turned" in self.wrong:
            return y.transpose(2, 3).reshape(b, n, -1)
        if "batch-second" in self.wrong:
            return y.reshape(b * self.num_heads, n, -1).transpose(0, 1).reshape(b, n, -1)
        return y.transpose(1, 2).reshape(b, n, -1)

    def scale(self, d: int, m: int) -> float:
        for switch, factor in (
            ("unscaled", 1.0),
            ("scale-width", m**-0.5),
            ("scale-multiplied", d**0.5),
            ("scale-twice", 1 / d),
            ("scale-odd", 0.217),
        ):
            if switch in self.wrong:
                return factor
        return d**-0.5

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = x @ self.q_proj.weight.t() if "no-query-bias" in self.wrong else self.q_proj(x)
        if "matrix-transposed" in self.wrong:
            q = x @ self.q_proj.weight + self.q_proj.bias
        k = self.q_proj(x) if "q-for-k" in self.wrong else self.k_proj(x)
        v = self.k_proj(x) if "k-for-v" in self.wrong else self.v_proj(x)
        if "kv-exchanged" in self.wrong:
            k, v = v, k
        return q, k, x if "no-value-projection" in self.wrong else v

    def hide(self, s: Tensor, mask: Tensor) -> Tensor:
        """mask [B, Q, K], True = may attend."""
        hidden = ~mask[:, None]
        if "mask-ignored" in self.wrong or "mask-times-weights" in self.wrong:
            return s
        if "mask-added" in self.wrong:
            return s + mask[:, None]
        if "mask-times-scores" in self.wrong:
            return s * mask[:, None]
        if "mask-head-order" in self.wrong:
            hidden = hidden.flatten(0, 1).repeat(self.num_heads, 1, 1).view(s.shape)
        if "mask-queries" in self.wrong:
            hidden = hidden.transpose(-1, -2)
        if "mask-first-example" in self.wrong:
            hidden = hidden[:1]
        fill = 1e-9 if "mask-fill-1e-9" in self.wrong else -10.0 if "mask-fill-10" in self.wrong else -1e9
        return s.masked_fill(hidden, fill)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(y) for y in self.project(x))
        s = q @ k.transpose(-1, -2) * self.scale(x.shape[-1] // self.num_heads, x.shape[-1])
        past = torch.ones(s.shape[-2:], dtype=torch.bool).tril(1 if "causal-ahead" in self.wrong else 0)
        past = past.t() if "causal-reversed" in self.wrong else past
        if self.causal and "causal-after" not in self.wrong:
            s = s.masked_fill(~past, -5.0 if "causal-fill" in self.wrong else -math.inf)
        if mask is not None:
            s = self.hide(s, mask)
        axis = {"axis-queries": -2, "axis-heads": 1, "axis-batch": 0}
        a = s if "no-softmax" in self.wrong else s.softmax(next((axis[x] for x in self.wrong if x in axis), -1))
        if mask is not None and "mask-times-weights" in self.wrong:
            a = a * mask[:, None]
        if self.causal and "causal-after" in self.wrong:
            a = a * past
        y = self.merge((a.transpose(-1, -2) if "weights-transposed" in self.wrong else a) @ v)
        return y if "no-output" in self.wrong else self.out_proj(y)


def diagnosed(module: nn.Module, spec: Spec | None = None) -> Fit:
    found = fit(Patient(module.eval(), spec=spec))
    assert found is not None
    return found


def names(found: Fit) -> list[str]:
    return sorted(deviation.name for deviation in found.deviations)


STATED = Spec(mask="allowed", mask_shape="BQK")


@pytest.mark.parametrize("causal", [False, True])
def test_the_definition_fits_itself(causal: bool) -> None:
    found = diagnosed(Attention(causal=causal), STATED)
    assert found.healthy
    assert found.error < 1e-13
    assert found.masks == {"mask": None}
    assert found.variant.causal == ("right" if causal else "")


@pytest.mark.parametrize("switch", SINGLES)
def test_one_mistake_is_named(switch: str) -> None:
    found = diagnosed(Attention(wrong=(switch,)))
    assert names(found)[0] == SINGLES[switch] or SINGLES[switch] in names(found)
    plain = [d.name for d in found.deviations if not d.name.startswith("mask")]
    assert plain == [SINGLES[switch]]
    assert found.error < 1e-12
    assert found.healthy_error > 1e-3


@pytest.mark.parametrize("switch", MASKED)
def test_a_mistake_with_the_mask_is_named(switch: str) -> None:
    found = diagnosed(Attention(wrong=(switch,)), STATED)
    assert names(found) == [MASKED[switch]]
    assert found.error < 1e-9
    deviation = found.masks["mask"]
    assert deviation.name == MASKED[switch]


@pytest.mark.parametrize("switch", CAUSAL)
def test_a_mistake_with_the_causal_mask_is_named(switch: str) -> None:
    found = diagnosed(Attention(wrong=(switch,), causal=True), Spec(mask="allowed", mask_shape="BQK"))
    assert found.deviations[0].name == CAUSAL[switch]


def kind(switch: str) -> str:
    return switch.split("-")[0].replace("unscaled", "scale")


PAIRS = [
    pair
    for pair in itertools.combinations(
        [
            *("scale-width", "axis-queries", "split-view", "merge-view"),
            *("no-output", "k-for-v", "kv-exchanged", "weights-transposed"),
        ],
        2,
    )
    if kind(pair[0]) != kind(pair[1])
    and set(pair) != {"k-for-v", "kv-exchanged"}
    # Transposed weights of a softmax over another axis are those of exchanged queries and keys.
    and not (kind(pair[0]) == "axis" and pair[1] == "weights-transposed")
]


@pytest.mark.parametrize(
    "pair", [pytest.param(pair, marks=pytest.mark.slow if i % 4 else ()) for i, pair in enumerate(PAIRS)], ids="+".join
)
def test_two_mistakes_are_named(pair: tuple[str, str]) -> None:
    found = diagnosed(Attention(wrong=pair))
    plain = sorted(d.name for d in found.deviations if not d.name.startswith("mask"))
    assert plain == sorted(SINGLES[switch] for switch in pair)
    assert found.error < 1e-12


def test_a_mistake_and_one_with_the_mask() -> None:
    found = diagnosed(Attention(wrong=("scale-width", "mask-times-weights")), STATED)
    assert names(found) == ["mask-after-softmax", "wrong-scale"]
    assert found.masks["mask"] is not None


def test_the_sentence_has_the_numbers() -> None:
    found = diagnosed(Attention(64, 4, ("scale-width",)))
    assert found.sentence.startswith(
        "the scores are divided by 8.000 = sqrt(64), the model width; the head width is 16, expected 4.000. "
        "Computed this way, the module's output matches to "
    )
    assert found.numbers["scale"] == 1 / 8


def test_a_scale_of_no_formula_is_measured() -> None:
    found = diagnosed(Attention(wrong=("scale-odd",)))
    assert found.numbers["scale"] == pytest.approx(0.217, rel=1e-9)
    assert "multiplied by 0.217; the head width is 8, expected 1/sqrt(8) = 0.353553" in found.sentence


def test_several_explanations_are_all_told() -> None:
    """Without a mask that tells them apart, scores times the mask and a fill of 0 are one and the same."""
    found = diagnosed(Attention(wrong=("mask-times-scores",)), STATED)
    assert ["mask-fill-too-small"] in [[d.name for d in other] for other in found.alternatives]


class Embraced(nn.Module):
    """A norm before, the input added after, as vision transformers have it; `post` as the first transformer had it."""

    def __init__(self, *, post: bool, wrong: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.attention = Attention(wrong=wrong)
        self.num_heads, self.post = 4, post
        self.norm = nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.attention(x)) if self.post else x + self.attention(self.norm(x))


@pytest.mark.parametrize("post", [False, True])
def test_norms_and_a_residual_are_seen_through(post: bool) -> None:
    found = diagnosed(Embraced(post=post))
    assert found.healthy
    assert found.variant.residual
    assert names(diagnosed(Embraced(post=post, wrong=("scale-width",)))) == ["wrong-scale"]


class Rotary(nn.Module):
    def __init__(self, pairing: str = "half", angles: str = "half", on: str = "qk", base: float = 10000.0) -> None:
        super().__init__()
        self.num_heads, self.base = 4, base
        self.pairing, self.angles, self.on = pairing, angles, on
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def rotate(self, x: Tensor) -> Tensor:
        n, d = x.shape[-2:]
        frequencies = self.base ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
        angle = torch.arange(n, dtype=x.dtype)[:, None] * frequencies
        angle = torch.cat([angle, angle], -1) if self.angles == "half" else angle.repeat_interleave(2, -1)
        if self.pairing == "half":
            other = torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1)
        else:
            other = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
        return x * angle.cos() + other * angle.sin()

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = (self.rotate(y) if role in self.on else y for role, y in zip("qkv", (q, k, v), strict=True))
        y = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, m))


@pytest.mark.parametrize("pairing", ["half", "neighbours"])
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_rope_of_either_pairing_is_right(pairing: str, base: float) -> None:
    found = diagnosed(Rotary(pairing, pairing, base=base))
    assert found.healthy
    assert found.variant.rope.pairing == pairing


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("half", "neighbours"), "rope-pairing"),
        (("neighbours", "half"), "rope-pairing"),
        (("half", "half", "q"), "rope-asymmetric"),
        (("neighbours", "neighbours", "k"), "rope-asymmetric"),
        (("half", "half", "qkv"), "rope-asymmetric"),
    ],
)
def test_a_mistake_with_rope_is_named(arguments: tuple[str, ...], name: str) -> None:
    assert names(diagnosed(Rotary(*arguments))) == [name]


class Grouped(nn.Module):
    def __init__(self, *, tiled: bool) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.tiled = 4, 2, tiled
        self.wq, self.wk, self.wv, self.wo = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        q, k, v = (w(x).view(b, n, -1, 8).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        k, v = (y.repeat(1, 2, 1, 1) if self.tiled else y.repeat_interleave(2, 1) for y in (k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.wo(y.transpose(1, 2).reshape(b, n, m))


def test_grouped_queries() -> None:
    found = diagnosed(Grouped(tiled=False))
    assert found.healthy
    assert found.projections.kv_heads == 2
    assert names(diagnosed(Grouped(tiled=True))) == ["gqa-order"]


class Three(nn.Module):
    """forward(query, key, value), with what each projection is given in `order`."""

    def __init__(self, order: str = "qkv") -> None:
        super().__init__()
        self.num_heads, self.order = 4, order
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        given = {"q": query, "k": key, "v": value}
        maps = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (f(given[x]).unflatten(-1, (4, 8)).transpose(1, 2) for f, x in zip(maps, self.order, strict=True))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out_proj(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("order", ["qkk", "qvk", "qqv"])
def test_arguments_in_another_order(order: str) -> None:
    assert diagnosed(Three()).healthy
    found = diagnosed(Three(order))
    assert names(found) == ["argument-order"]
    assert found.variant.inputs == order


@pytest.mark.parametrize(
    "module",
    [
        nn.MultiheadAttention(32, 4, batch_first=True),
        nn.MultiheadAttention(32, 4),
        nn.MultiheadAttention(32, 4, kdim=24, vdim=20, batch_first=True),
        nn.MultiheadAttention(32, 4, bias=False, batch_first=True),
        headwise.nn.MultiHeadAttention(32, 4),
        headwise.nn.MultiHeadAttention(32, 4, num_kv_heads=2, bias=False),
        headwise.nn.MultiHeadAttention(32, 4, qk_norm="rms"),
        headwise.nn.MultiHeadAttention(32, 4, projection="shared"),
        headwise.nn.MultiHeadAttention(32, 4, positions=headwise.nn.positions.Rope(8)),
        headwise.nn.MultiHeadAttention(36, 6, positions=headwise.nn.positions.Alibi(6)),
    ],
    ids=lambda module: type(module).__name__,
)
def test_official_modules_are_healthy(module: nn.Module) -> None:
    found = diagnosed(module)
    assert found.healthy
    assert all(deviation is None for deviation in found.masks.values())


class Linear(nn.Module):
    """Linear attention: a feature map in place of the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 4
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        maps = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (f(x).unflatten(-1, (4, 8)).transpose(1, 2) for f in maps)
        q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
        y = q @ (k.transpose(-1, -2) @ v) / (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(32, 32, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x.transpose(1, 2)).transpose(1, 2)


class Dice(Attention):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return nn.functional.dropout(super().forward(x, mask), 0.1)


@pytest.mark.parametrize("module", [Linear(), Convolution(), Dice()], ids=lambda module: type(module).__name__)
def test_what_is_something_else_has_no_fit(module: nn.Module) -> None:
    assert fit(Patient(module.eval())) is None


def test_a_part_in_float32_is_no_mistake() -> None:
    class Careful(Attention):
        def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            q, k, v = super().project(x)
            return q.float().to(x.dtype), k.float().to(x.dtype), v

    found = diagnosed(Careful())
    assert found.healthy
    assert found.error > 1e-12


def test_the_module_is_left_as_it_was() -> None:
    module = Attention(wrong=("unscaled",)).eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    diagnosed(module)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_a_stated_scale_is_the_right_one() -> None:
    module = Attention(wrong=("unscaled",))
    assert diagnosed(module, Spec(scale=1.0)).healthy
    other = diagnosed(Attention(), Spec(scale=1.0))
    assert names(other) == ["wrong-scale"]
    assert "multiplied by 0.353553; the head width is 8, expected 1, as stated" in other.sentence


def test_rope_and_scale_wrong_together() -> None:
    class Both(Rotary):
        def rotate(self, x: Tensor) -> Tensor:
            return super().rotate(x) * math.sqrt(x.shape[-1])  # of queries alone, so that nothing is left of the scale

    assert names(diagnosed(Both(on="q"))) == ["rope-asymmetric", "wrong-scale"]


def test_a_window_of_its_own_is_no_mistake() -> None:
    class Window(Attention):
        def hide(self, s: Tensor, mask: Tensor) -> Tensor:
            near = torch.ones(s.shape[-2:], dtype=torch.bool)
            return s.masked_fill(~(near.tril() & near.triu(-2)), -math.inf)

        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x, torch.ones(1, dtype=torch.bool))

    found = diagnosed(Window())
    assert found.healthy
    assert found.variant.causal == "observed"
    assert names(diagnosed(Window(wrong=("unscaled",)))) == ["wrong-scale"]


def test_what_is_a_matter_of_convention_says_so() -> None:
    (tiled,) = diagnosed(Grouped(tiled=True)).deviations
    (exchanged,) = diagnosed(Attention(wrong=("kv-exchanged",))).deviations
    (unscaled,) = diagnosed(Attention(wrong=("unscaled",))).deviations
    assert tiled.convention
    assert exchanged.convention
    assert not unscaled.convention


def test_the_norm_of_queries_used_for_keys() -> None:
    """Norms begin as the identity; that one is used twice shows only once they are moved off it."""

    class Normed(Attention):
        def __init__(self, *, twice: bool) -> None:
            super().__init__()
            self.twice = twice
            self.q_norm, self.k_norm = nn.LayerNorm(32), nn.LayerNorm(32)

        def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            q, k, v = super().project(x)
            return self.q_norm(q), (self.q_norm if self.twice else self.k_norm)(k), v

    assert diagnosed(Normed(twice=False)).healthy
    assert names(diagnosed(Normed(twice=True))) == ["unused-parameter"]


def test_a_factor_is_refined_only_where_there_is_one() -> None:
    calls: list[float] = []

    def distance(factor: float, *, right: float | None) -> float:
        calls.append(factor)
        return 1.0 if right is None else abs(factor - right)

    for right in (0.25, 0.731, 40.0):  # 0.25 is a point of the grid
        assert math.isclose(_minimum(functools.partial(distance, right=right), 0.25), right, rel_tol=1e-9)
    calls.clear()
    _minimum(functools.partial(distance, right=None), 0.25)
    assert len(calls) < 110
