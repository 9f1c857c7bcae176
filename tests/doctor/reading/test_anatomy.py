"""What traced operations amount to: one order for every style of code, and what stands where."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.site import Site

WIDTH, HEADS = 12, 3
D = WIDTH // HEADS


class Styled(nn.Module):
    """Attention of three heads, causal; how its products are written is left to those that derive from it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = HEADS
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (HEADS, D)) for f in (self.q, self.k, self.v))  # [B, N, H, D]
        return self.out(self.attend(q, k, v).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[B, N, H, D] of three of them."""
        raise NotImplementedError


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


class Matmul(Styled):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        s = (q @ k.transpose(-2, -1) / math.sqrt(D)).masked_fill(~causal(q.shape[2]), -math.inf)
        return (s.softmax(-1) @ v).transpose(1, 2)


class Einsum(Styled):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = torch.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
        a = torch.where(causal(q.shape[1]), s, -math.inf).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", a, v)


class Bmm(Styled):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, n = q.shape[:2]
        q, k, v = (x.transpose(1, 2).reshape(b * HEADS, n, D) for x in (q, k, v))
        s = torch.baddbmm(torch.zeros(1, n, n), q, k.transpose(1, 2), alpha=D**-0.5)
        a = s.masked_fill_(~causal(n), -math.inf).softmax(-1)
        return torch.bmm(a, v).view(b, HEADS, n, D).transpose(1, 2)


class HeadsFirst(Styled):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, n = q.shape[:2]
        q, k, v = (x.permute(2, 0, 1, 3).reshape(HEADS * b, n, D) for x in (q, k, v))
        s = torch.bmm(q / math.sqrt(D), k.mT).masked_fill(~causal(n), -math.inf)
        return (s.softmax(2) @ v).view(HEADS, b, n, D).permute(1, 2, 0, 3)


class SequenceFirst(Styled):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # [N, B, H, D]
        s = torch.einsum("ibhd,jbhd->bijh", q, k) / D**0.5
        s = s.masked_fill(~causal(len(q))[None, :, :, None], -math.inf)
        return torch.einsum("bijh,jbhd->bihd", s.softmax(2), v)


class KeysTimesQueries(Styled):
    """k qᵀ, so the softmax is over the rows, and the values meet its transpose."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        s = (k @ q.mT) / math.sqrt(D)
        a = s.masked_fill(~causal(q.shape[2]).T, -math.inf).softmax(dim=-2)
        return (v.mT @ a).permute(0, 3, 1, 2)


class ByHand(Styled):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        e = torch.exp(q @ k.mT / math.sqrt(D)) * causal(q.shape[2])
        return (e / e.sum(-1, keepdim=True) @ v).transpose(1, 2)


class Fused(Styled):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


STYLES = [Matmul, Einsum, Bmm, HeadsFirst, SequenceFirst, KeysTimesQueries, ByHand, Fused]


def seen(module: nn.Module) -> Anatomy:
    return Patient(module).see()


def site_of(module: nn.Module) -> Site:
    (site,) = seen(module).sites
    return site


@pytest.mark.parametrize("style", STYLES, ids=lambda s: s.__name__)
def test_every_style_comes_to_the_same_order(style: type[Styled]) -> None:
    module = style().eval()
    anatomy = seen(module)
    (site,) = anatomy.sites
    x = anatomy.inputs.query
    n = x.shape[1]
    with torch.no_grad():
        q, k, v = (f(x).unflatten(-1, (HEADS, D)).transpose(1, 2).double() for f in (module.q, module.k, module.v))
    scores = (q @ k.mT / math.sqrt(D)).masked_fill(~causal(n), -math.inf)
    weights = scores.softmax(-1)

    assert site.layout.right
    assert site.grid.element.shape == (len(x), HEADS, n, n)
    if style is ByHand:  # its mask comes after the exponential
        scores = q @ k.mT / math.sqrt(D)
    close = {"scores": scores, "weights": weights, "weights_at_values": weights, "products": q @ k.mT}
    for name, expected in close.items():
        factor = {"products": _scaled_before(style)}.get(name, 1.0)
        torch.testing.assert_close(getattr(site, name), expected * factor, atol=1e-5, rtol=1e-5, msg=name)
    for name, expected in (("q", q), ("k", k), ("v", v)):
        raw = site.raw(name)
        assert raw is not None
        torch.testing.assert_close(raw, expected, atol=1e-5, rtol=1e-5)
        assert site.columns(name).remainder(1 << 32).tolist() == torch.arange(WIDTH).view(HEADS, D).tolist()
        assert site.placement(name).right
    torch.testing.assert_close(site.v.double(), v, atol=1e-5, rtol=1e-5)
    assert [seed.name for side in "qkv" for seed in site.projections[side]] == ["q.weight", "k.weight", "v.weight"]
    assert site.output[0].name == "out.weight"


def _scaled_before(style: type[Styled]) -> float:
    """By what queries and keys were divided before they met (fused attention divides both by the fourth root)."""
    return {HeadsFirst: D**-0.5, Fused: D**-0.5}.get(style, 1.0)


def test_queries_are_known_by_the_values_that_their_partners_share() -> None:
    assert site_of(Matmul()).queries_left
    assert not site_of(KeysTimesQueries()).queries_left
    assert site_of(ByHand()).softmax.by_hand


# Grouped and single heads.


class Grouped(nn.Module):
    """Four query heads, two key heads, without repeating them: [B, G, 2 Q, D]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.num_heads, self.num_kv_heads = 4, 2
        self.q_proj, self.o_proj = nn.Linear(16, 16), nn.Linear(16, 16)
        self.k_proj, self.v_proj = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, 2, 2, 4).permute(0, 2, 3, 1, 4).reshape(b, 2, 2 * n, 4)
        k, v = (f(x).view(b, n, 2, 4).transpose(1, 2) for f in (self.k_proj, self.v_proj))
        out = (q @ k.mT / 2).softmax(-1) @ v
        return self.o_proj(out.view(b, 4, n, 4).transpose(1, 2).reshape(b, n, 16))


class OneByOne(nn.Module):
    """A ModuleList of single heads, as in many a course."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = nn.ModuleList(nn.ModuleDict({n: nn.Linear(8, 4, bias=False) for n in "qkv"}) for _ in range(2))
        self.proj = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        found = [(h["q"](x) @ h["k"](x).mT / 2).softmax(-1) @ h["v"](x) for h in self.heads]
        return self.proj(torch.cat(found, dim=-1))


def test_query_heads_that_share_a_key_head() -> None:
    site = site_of(Grouped())
    assert site.grid is not None
    assert site.weights.shape[1] == 4
    assert site.grid.key_heads.unique(return_inverse=True)[1].tolist() == [0, 0, 1, 1]
    torch.testing.assert_close(site.weights.sum(-1), torch.ones_like(site.weights.sum(-1)))


def test_single_heads_are_a_site_each() -> None:
    anatomy = seen(OneByOne())
    assert [site.weights.shape[1] for site in anatomy.sites] == [1, 1]
    assert [site.projections["q"][0].name for site in anatomy.sites] == ["heads.0.q.weight", "heads.1.q.weight"]


class Latent(nn.Module):
    """MLA: keys of two parts, one of its own for each head, one rotated and the same for all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = 2
        self.q, self.down, self.up, self.o = nn.Linear(8, 12), nn.Linear(8, 4 + 2), nn.Linear(4, 16), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, 2, 6).transpose(1, 2)
        latent, shared = self.down(x).split([4, 2], dim=-1)
        k, v = self.up(latent).view(b, n, 2, 8).transpose(1, 2).split([4, 4], dim=-1)
        cos, sin = torch.arange(n).cos(), torch.arange(n).sin()

        def turn(y: Tensor) -> Tensor:
            return torch.stack([y[..., 0] * cos - y[..., 1] * sin, y[..., 0] * sin + y[..., 1] * cos], dim=-1)

        q = torch.cat([q[..., :4], turn(q[..., 4:])], dim=-1)
        k = torch.cat([k, turn(shared)[:, None].expand(b, 2, n, 2)], dim=-1)
        return self.o(((q @ k.mT / 6**0.5).softmax(-1) @ v).transpose(1, 2).reshape(b, n, 8))


def test_keys_of_two_parts() -> None:
    module = Latent().eval()
    anatomy = seen(module)
    (site,) = anatomy.sites
    raw = site.raw("k")
    assert raw is not None
    with torch.no_grad():
        latent, shared = module.down(anatomy.inputs.query).split([4, 2], dim=-1)
        own = module.up(latent).unflatten(-1, (2, 8))[..., :4].transpose(1, 2)
    torch.testing.assert_close(raw[..., :4], own.double(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(raw[..., 4:], shared[:, None].expand(-1, 2, -1, -1).double(), atol=1e-5, rtol=1e-5)


class WithLearnedKeys(Matmul):
    """Two keys of nobody before those of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Parameter(torch.randn(2, HEADS, 2, D))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (
            torch.cat([m.expand(len(q), -1, -1, -1), y.transpose(1, 2)], dim=2)
            for m, y in zip(self.more, (k, v), strict=True)
        )
        return ((q.transpose(1, 2) @ k.mT / math.sqrt(D)).softmax(-1) @ v).transpose(1, 2)


def test_learned_keys_have_no_place_among_those_of_tokens() -> None:
    site = site_of(WithLearnedKeys())
    assert site.grid is not None
    assert site.weights.shape == (3, HEADS, 5, 5)
    assert bool((site.weights.sum(-1) < 1).all())


class WithAClassToken(Matmul):
    """A learned token is put before the others, and taken off at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.randn(1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1))[:, 1:]


def test_a_learned_token_among_the_others() -> None:
    assert site_of(WithAClassToken()).grid is not None


# Cross attention, learned queries.


class Cross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return (self.q(x) @ self.k(memory).mT / 8**0.5).softmax(-1) @ self.v(memory)


class Pooling(nn.Module):
    """One learned query for each example."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query = nn.Parameter(torch.randn(2, 8))
        self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (self.query @ self.k(x).mT / 8**0.5).softmax(-1) @ self.v(x)


def test_keys_come_from_the_other_input() -> None:
    anatomy = seen(Cross())
    (site,) = anatomy.sites
    assert site.grid is not None
    assert site.weights.shape == (3, 1, anatomy.inputs.query.shape[1], anatomy.inputs.key.shape[1])
    assert set(site.grid.key_inputs.tolist()) == {1}


# What is no attention's layout.


class SplitByAView(Matmul):
    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, HEADS, n, D) for f in (self.q, self.k, self.v))
        return self.out((q @ k.mT / 2).softmax(-1).matmul(v).transpose(1, 2).reshape(b, n, WIDTH))


class OverHeads(Styled):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 2).softmax(-1) @ v


class OverQueries(Styled):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhqk,bkhd->bqhd", (torch.einsum("bqhd,bkhd->bhqk", q, k) / 2).softmax(2), v)


def test_heads_split_by_a_view_repeat_tokens() -> None:
    placement = site_of(SplitByAView()).placement("k")
    assert (placement.heads, placement.repeated, placement.examples, placement.mixed) == (True, True, False, False)
    assert not placement.right
    # five rows of 12 as 15 rows of 4, the first five of them: position 0 three times, then position 1 twice
    assert placement.tokens[:5] == (0, 0, 0, 1, 1)


def test_what_changes_along_a_row_of_the_softmax() -> None:
    layout = site_of(OverHeads()).layout
    assert (layout.key_position, layout.query_position) == (0, 0)
    assert layout.key_feature == 1
    layout = site_of(OverQueries()).layout
    assert (layout.query_position, layout.key_position) == (1, 0)
    right = site_of(Matmul()).layout
    assert (right.query_position, right.key_position, right.right) == (0, 1, True)


# Other runs.


def test_a_second_run_with_other_inputs_has_the_same_sites() -> None:
    anatomy = seen(Matmul())
    assert anatomy.again is not None
    (site,), (twin,) = anatomy.sites, anatomy.again
    assert site.scores.shape == twin.scores.shape
    assert not torch.allclose(site.products, twin.products)


def test_a_module_is_looked_at_in_train_mode_on_a_copy() -> None:
    module = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True).eval()
    patient = Patient(module)
    (site,) = look(patient, train=True).sites
    assert any(step.noise for step in site.trace.steps)
    assert not any(step.noise for step in site.steps_before)
    (still,) = patient.see().sites
    assert not any(step.noise for step in still.trace.steps)
    assert not module.training
    assert not patient.module.training


def test_dropout_falls_alike_whatever_the_generator_is_at() -> None:
    patient = Patient(nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True))
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        (site,) = look(patient, train=True).sites
        runs.append(site.weights_at_values)
    assert torch.equal(*runs)


def test_where_there_is_no_attention_the_reason_is_said() -> None:
    patient = Patient(nn.Linear(8, 8))
    assert patient.anatomy is None
    with pytest.raises(NotChecked, match="no softmax"):
        patient.see()


def test_learned_queries_stand_in_their_order() -> None:
    site = site_of(Pooling())
    assert site.grid is not None
    assert site.weights.shape[:3] == (3, 1, 2)
