"""What traced operations amount to: one order for every style of code, and what stands where."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.site import Site

WIDTH, HEADS = 12, 3
D = WIDTH // HEADS


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


def matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    s = (q @ k.transpose(-2, -1) / math.sqrt(D)).masked_fill(~causal(q.shape[2]), -math.inf)
    return (s.softmax(-1) @ v).transpose(1, 2)


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, n = q.shape[:2]
    q, k, v = (x.permute(2, 0, 1, 3).reshape(HEADS * b, n, D) for x in (q, k, v))
    s = torch.bmm(q / math.sqrt(D), k.mT).masked_fill(~causal(n), -math.inf)
    return (s.softmax(2) @ v).view(HEADS, b, n, D).permute(1, 2, 0, 3)


def sequence_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # [N, B, H, D]
    s = torch.einsum("ibhd,jbhd->bijh", q, k) / D**0.5
    s = s.masked_fill(~causal(len(q))[None, :, :, None], -math.inf)
    return torch.einsum("bijh,jbhd->bihd", s.softmax(2), v)


def keys_times_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """k qᵀ, so the softmax is over the rows, and the values meet its transpose."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    s = (k @ q.mT) / math.sqrt(D)
    return (v.mT @ s.masked_fill(~causal(q.shape[2]).T, -math.inf).softmax(dim=-2)).permute(0, 3, 1, 2)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    e = torch.exp(q @ k.mT / math.sqrt(D)) * causal(q.shape[2])
    return (e / e.sum(-1, keepdim=True) @ v).transpose(1, 2)


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def over_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 2).softmax(-1) @ v


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhqk,bkhd->bqhd", (torch.einsum("bqhd,bkhd->bhqk", q, k) / 2).softmax(2), v)


def split_by_a_view(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(2).view(len(x), HEADS, -1, D) for x in (q, k, v))
    return ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2)


class Styled(nn.Module):
    """Attention of three heads, written in a style: [B, N, H, D] of three of them."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.heads = attend, HEADS
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (HEADS, D)) for f in (self.q, self.k, self.v))
        return self.out(self.attend(q, k, v).flatten(2))


def site_of(module: nn.Module) -> Site:
    (site,) = Patient(module).see().sites
    return site


@pytest.mark.parametrize("style", [matmul, heads_first, sequence_first, keys_times_queries, by_hand, fused])
def test_every_style_comes_to_the_same_order(style: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    module = Styled(style).eval()
    anatomy = Patient(module).see()
    (site,) = anatomy.sites
    x = anatomy.inputs.query
    n = x.shape[1]
    with torch.no_grad():
        q, k, v = (f(x).unflatten(-1, (HEADS, D)).transpose(1, 2).double() for f in (module.q, module.k, module.v))
    products = q @ k.mT
    scores = products / math.sqrt(D)
    weights = scores.masked_fill(~causal(n), -math.inf).softmax(-1)
    if style is not by_hand:  # its mask comes after the exponential
        scores = scores.masked_fill(~causal(n), -math.inf)
    before = D**-0.5 if style in (heads_first, fused) else 1.0  # by what queries and keys were divided before they met

    assert site.layout.right
    assert site.grid.element.shape == (len(x), HEADS, n, n)
    assert site.queries_left == (style is not keys_times_queries)
    assert site.softmax.by_hand == (style is by_hand)
    close = {"scores": scores, "weights": weights, "weights_at_values": weights, "products": products * before}
    for name, expected in close.items():
        torch.testing.assert_close(getattr(site, name), expected, atol=1e-5, rtol=1e-5, msg=name)
    for name, expected in (("q", q), ("k", k), ("v", v)):
        torch.testing.assert_close(site.raw(name), expected, atol=1e-5, rtol=1e-5)
        assert site.columns(name).remainder(1 << 32).tolist() == torch.arange(WIDTH).view(HEADS, D).tolist()
        assert site.placement(name).right
    torch.testing.assert_close(site.v.double(), v, atol=1e-5, rtol=1e-5)
    assert [seed.name for side in "qkv" for seed in site.projections[side]] == ["q.weight", "k.weight", "v.weight"]
    assert site.output[0].name == "out.weight"


class Grouped(nn.Module):
    """Four query heads, two key heads, without repeating them: [B, G, 2 Q, D]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.num_heads, self.num_kv_heads = 4, 2
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, 2, 2, 4).permute(0, 2, 3, 1, 4).reshape(b, 2, 2 * n, 4)
        k, v = (f(x).view(b, n, 2, 4).transpose(1, 2) for f in (self.k_proj, self.v_proj))
        return ((q @ k.mT / 2).softmax(-1) @ v).view(b, 4, n, 4).transpose(1, 2).reshape(b, n, 16)


def test_query_heads_that_share_a_key_head() -> None:
    site = site_of(Grouped())
    assert site.weights.shape[1] == 4
    assert site.grid.key_heads.unique(return_inverse=True)[1].tolist() == [0, 0, 1, 1]
    torch.testing.assert_close(site.weights.sum(-1), torch.ones_like(site.weights.sum(-1)))


class OneByOne(nn.Module):
    """A ModuleList of single heads, as in many a course."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = nn.ModuleList(nn.ModuleDict({n: nn.Linear(8, 4, bias=False) for n in "qkv"}) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        found = [(h["q"](x) @ h["k"](x).mT / 2).softmax(-1) @ h["v"](x) for h in self.heads]
        return torch.cat(found, dim=-1)


def test_single_heads_are_a_site_each() -> None:
    sites = Patient(OneByOne()).see().sites
    assert [site.weights.shape[1] for site in sites] == [1, 1]
    assert [site.projections["q"][0].name for site in sites] == ["heads.0.q.weight", "heads.1.q.weight"]


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
    anatomy = Patient(module).see()
    raw = anatomy.sites[0].raw("k")
    with torch.no_grad():
        latent, shared = module.down(anatomy.inputs.query).split([4, 2], dim=-1)
        own = module.up(latent).unflatten(-1, (2, 8))[..., :4].transpose(1, 2)
    torch.testing.assert_close(raw[..., :4], own.double(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(raw[..., 4:], shared[:, None].expand(-1, 2, -1, -1).double(), atol=1e-5, rtol=1e-5)


class Learned(Styled):
    """Learned vectors among those of the tokens: a token in front, keys of nobody, or the queries."""

    def __init__(self, what: str) -> None:
        super().__init__(matmul)
        self.what, self.more = what, nn.Parameter(torch.randn(2, 2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "token":
            return super().forward(torch.cat([self.more[:1, :1].expand(len(x), -1, -1), x], dim=1))[:, 1:]
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.what == "keys":
            k, v = (torch.cat([m.expand(len(x), -1, -1), y], 1) for m, y in zip(self.more, (k, v), strict=True))
        return ((self.more[0] if self.what == "queries" else q) @ k.mT / WIDTH**0.5).softmax(-1) @ v


@pytest.mark.parametrize(
    ("what", "shape"), [("token", (3, 3, 5, 5)), ("keys", (3, 1, 5, 5)), ("queries", (3, 1, 2, 5))]
)
def test_learned_vectors_have_no_place_among_those_of_tokens(what: str, shape: tuple[int, ...]) -> None:
    site = site_of(Learned(what))
    assert site.grid is not None
    assert site.weights.shape == shape
    assert bool((site.weights.sum(-1) < 1).all()) == (what != "queries")


class Cross(Styled):
    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return (self.q(x) @ self.k(memory).mT / WIDTH**0.5).softmax(-1) @ self.v(memory)


def test_keys_come_from_the_other_input() -> None:
    site = site_of(Cross(matmul))
    assert site.weights.shape == (3, 1, 5, 7)
    assert set(site.grid.key_inputs.tolist()) == {1}


def test_heads_split_by_a_view_repeat_tokens() -> None:
    placement = site_of(Styled(split_by_a_view)).placement("k")
    assert (placement.heads, placement.repeated, placement.examples, placement.mixed) == (True, True, False, False)
    assert not placement.right
    # five rows of 12 as 15 rows of 4, the first five of them: position 0 three times, then position 1 twice
    assert placement.tokens[:5] == (0, 0, 0, 1, 1)


def test_what_changes_along_a_row_of_the_softmax() -> None:
    for style, expected in ((matmul, (0, 1, 0)), (over_heads, (0, 0, 1)), (over_queries, (1, 0, 0))):
        layout = site_of(Styled(style)).layout
        assert (layout.query_position, layout.key_position, layout.key_feature) == expected
        assert layout.right == (style is matmul)


def test_a_second_run_with_other_inputs_has_the_same_sites() -> None:
    anatomy = Patient(Styled(matmul)).see()
    (site,), (twin,) = anatomy.sites, anatomy.again
    assert site.scores.shape == twin.scores.shape
    assert not torch.allclose(site.products, twin.products)


def test_a_module_is_looked_at_in_train_mode_on_a_copy() -> None:
    module = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True).eval()
    patient = Patient(module)
    runs = []
    for seed in (1, 2):  # dropout falls alike whatever the generator is at
        torch.manual_seed(seed)
        (site,) = look(patient, train=True).sites
        runs.append(site.weights_at_values)
    assert torch.equal(*runs)
    assert any(step.noise for step in site.trace.steps)
    assert not any(step.noise for step in site.steps_before)
    assert not any(step.noise for step in patient.see().sites[0].trace.steps)
    assert not module.training
    assert not patient.module.training


def test_where_there_is_no_attention_the_reason_is_said() -> None:
    patient = Patient(nn.Linear(8, 8))
    assert patient.anatomy is None
    with pytest.raises(NotChecked, match="no softmax"):
        patient.see()
