"""Where projections are found: each way of keeping weights is read so that the definition gives the module's output."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attend

from headwise.doctor.calling.spec import Spec
from headwise.doctor.fitting.fit import fit
from headwise.doctor.fitting.projections import Projections, find_projections
from headwise.doctor.patient import Patient
from headwise.doctor.reading.projection_names import read_name

M, H, D = 24, 3, 8


def heads(x: Tensor, count: int = H) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def found(module: nn.Module, spec: Spec | None = None) -> Projections:
    """The reading with which the definition gives the module's output."""
    result = fit(Patient(module.eval(), spec=spec))
    assert result.healthy, result.sentence
    assert result.error < 1e-12
    return result.projections


class Named(nn.Module):
    """Four Linears by any names."""

    def __init__(self, names: tuple[str, str, str, str], *, bias: bool = True) -> None:
        super().__init__()
        self.num_heads, self.names = H, names
        for name in names:
            self.add_module(name, nn.Linear(M, M, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, o = (getattr(self, name) for name in self.names)
        return o(joined(attend(heads(q(x)), heads(k(x)), heads(v(x)))))


@pytest.mark.parametrize(
    "names",
    [
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        ("W_q", "W_k", "W_v", "W_o"),
        ("wq", "wk", "wv", "wo"),
        ("query", "key", "value", "dense"),
        ("to_q", "to_k", "to_v", "to_out"),
        ("queries", "keys", "values", "fc_out"),
        ("fc_q", "fc_k", "fc_v", "fc_o"),
        ("w_qs", "w_ks", "w_vs", "fc"),
        ("q_linear", "k_linear", "v_linear", "out"),
        ("toqueries", "tokeys", "tovalues", "unifyheads"),
        ("query_layer", "key_layer", "value_layer", "merge"),
        ("linear_Q", "linear_K", "linear_V", "final_linear"),
        ("qLinear", "kLinear", "vLinear", "projection"),
    ],
)
def test_names_are_understood(names: tuple[str, str, str, str]) -> None:
    p = found(Named(names))
    assert tuple(p.names[role] for role in "qkvo") == names
    assert p.certain
    assert (p.heads, p.kv_heads, p.head_width) == (H, H, D)


def test_names_count_for_more_than_the_order_of_registration() -> None:
    class Backwards(Named):
        def forward(self, x: Tensor) -> Tensor:
            v, k, q, o = (getattr(self, name) for name in self.names)
            return o(joined(attend(heads(q(x)), heads(k(x)), heads(v(x)))))

    p = found(Backwards(("values", "keys", "queries", "fc_out")))
    assert p.names == {"q": "queries", "k": "keys", "v": "values", "o": "fc_out"}


def test_where_names_say_nothing_the_order_does() -> None:
    p = found(Named(("alpha", "beta", "gamma", "delta")))
    assert p.names == {"q": "alpha", "k": "beta", "v": "gamma", "o": "delta"}
    assert not p.certain


class Fused(nn.Module):
    def __init__(self, layout: str, name: str = "qkv") -> None:
        super().__init__()
        self.num_heads, self.layout = H, layout
        setattr(self, name, nn.Linear(M, 3 * M))
        self.name = name
        self.proj = nn.Linear(M, M)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        sizes = {"3": 3, "h": H, "d": D}
        order = self.layout.split()
        y = getattr(self, self.name)(x).view(b, n, *[sizes[label] for label in order])
        y = y.permute(2 + order.index("3"), 0, 2 + order.index("h"), 1, 2 + order.index("d"))
        return self.proj(joined(attend(*y)))


@pytest.mark.parametrize("layout", ["3 h d", "h 3 d", "d 3 h", "h d 3"])
def test_a_fused_projection_in_each_layout(layout: str) -> None:
    p = found(Fused(layout))
    assert p.kind == "fused"
    assert p.layout == ("" if layout == "3 h d" else layout)


@pytest.mark.parametrize("name", ["in_proj", "c_attn", "Wqkv", "to_qkv", "query_key_value", "attn_in"])
def test_names_of_fused_projections(name: str) -> None:
    assert found(Fused("3 h d", name)).names["v"] == name


class Conv1D(nn.Module):
    """GPT-2's Linear, with the weight the other way round."""

    def __init__(self, out: int, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(width, out) * 0.2), nn.Parameter(torch.zeros(out))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class WithConv1D(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.c_attn, self.c_proj = H, Conv1D(3 * M, M), Conv1D(M, M)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(joined(attend(*(heads(y) for y in self.c_attn(x).chunk(3, -1)))))


class FusedMemory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = H
        self.to_q, self.to_kv = nn.Linear(M, M, bias=False), nn.Linear(20, 2 * M, bias=False)
        self.to_out = nn.Sequential(nn.Linear(M, M), nn.Dropout(0.1))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        k, v = self.to_kv(context).chunk(2, -1)
        return self.to_out(joined(attend(heads(self.to_q(x)), heads(k), heads(v))))


class Einsum(nn.Module):
    """Raw parameters, [M, H, D] or [H, M, D]."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.num_heads, self.layout = H, layout
        shape = [{"m": M, "h": H, "d": D}[letter] for letter in layout]
        self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.randn(shape) * 0.2) for _ in range(3))
        self.b_q = nn.Parameter(torch.randn(H, D))
        self.w_o = nn.Parameter(torch.randn(H, D, M) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum(f"bnm,{self.layout}->bhnd", x, w) for w in (self.w_q, self.w_k, self.w_v))
        return torch.einsum("bhnd,hdm->bnm", attend(q + self.b_q[:, None], k, v), self.w_o)


class Matrices(nn.Module):
    """Raw matrices [in, out], square, so that their shapes do not say which axis is which."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = H
        self.wq, self.wk, self.wv, self.wo = (nn.Parameter(torch.randn(M, M) * 0.2) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return joined(attend(heads(x @ self.wq), heads(x @ self.wk), heads(x @ self.wv))) @ self.wo


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(M, D, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return attend(self.query(x), self.key(x), self.value(x))


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.proj = nn.ModuleList(Head() for _ in range(H)), nn.Linear(M, M)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], -1))


class Shared(nn.Module):
    """One small matrix for all heads, after the input was split."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = H
        self.values, self.keys, self.queries = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.fc_out = nn.Linear(M, M)

    def forward(self, x: Tensor) -> Tensor:
        y = heads(x)
        return self.fc_out(joined(attend(self.queries(y), self.keys(y), self.values(y))))


class FewKeys(nn.Module):
    """Two key heads for six query heads, in one matrix; values of another width than keys."""

    def __init__(self) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = 6, 2
        self.wqkv, self.wo = nn.Linear(M, 24 + 2 * 8), nn.Linear(24, M, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.wqkv(x).split([24, 8, 8], -1)
        k, v = (heads(y, 2).repeat_interleave(3, 1) for y in (k, v))
        return self.wo(joined(attend(heads(q, 6), k, v)))


class WideValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads = H
        self.w_qs, self.w_ks, self.w_vs = nn.Linear(M, 15), nn.Linear(M, 15), nn.Linear(M, 33)
        self.fc = nn.Linear(33, M)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(joined(attend(heads(self.w_qs(x)), heads(self.w_ks(x)), heads(self.w_vs(x)))))


class Bare(nn.Module):
    """No projections at all."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value)


@pytest.mark.parametrize(
    ("module", "kind", "sizes"),
    [
        (WithConv1D(), "fused", (H, H, D)),
        (FusedMemory(), "fused-kv", (H, H, D)),
        (Einsum("mhd"), "separate", (H, H, D)),
        (Einsum("hmd"), "separate", (H, H, D)),
        (Matrices(), "separate", (H, H, D)),
        (Listed(), "listed", (H, H, D)),
        (Shared(), "shared", (H, H, D)),
        (FewKeys(), "fused", (6, 2, 4)),
        (WideValues(), "separate", (H, H, 5)),
        (Bare(), "none", (1, 1, None)),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "",
)
def test_every_kind_is_read(module: nn.Module, kind: str, sizes: tuple[int, int, int | None]) -> None:
    p = found(module)
    assert p.kind == kind
    assert (p.heads, p.kv_heads) == sizes[:2]
    assert sizes[2] in (None, p.head_width)


def test_heads_that_no_attribute_names_are_tried() -> None:
    class Nameless(Named):
        def __init__(self) -> None:
            super().__init__(("q_proj", "k_proj", "v_proj", "o_proj"))
            del self.num_heads

    assert found(Nameless()).heads == H


def test_heads_in_a_plain_list_are_found_too() -> None:
    class Hidden(Listed):
        def __init__(self) -> None:
            super().__init__()
            hidden = list(self.heads)
            del self.heads
            self.heads = hidden  # type: ignore[assignment]

    result = fit(Patient(Hidden().eval()))
    assert result.healthy
    assert result.projections.kind == "listed"


def test_what_is_stated_goes_before_names() -> None:
    module = Named(("one", "two", "three", "four"))
    module.names = ("three", "one", "four", "two")
    stated = {"q": "three", "k": "one", "v": "four", "o": "two"}
    p = found(module, Spec(parameters=stated))
    assert p.names == stated
    assert p.certain


def test_biases_are_found_whatever_they_are_called() -> None:
    p = found(nn.MultiheadAttention(M, H, kdim=20, vdim=16, batch_first=True))
    assert p.names["k"] == "k_proj_weight"
    assert p.k_bias.shape == (H, D)
    assert found(Einsum("hmd")).k_bias is None


def test_it_is_described() -> None:
    p = found(Named(("q_proj", "k_proj", "v_proj", "o_proj")))
    assert p.describe() == "q_proj, k_proj, v_proj -> o_proj: 3 heads of 8"
    assert found(FewKeys()).describe() == "wqkv -> wo: 6 heads of 4, 2 for keys and values"
    assert found(Bare()).describe().startswith("no projections -> no output projection: 1 head of ")


def test_no_reading_is_made_up() -> None:
    class Sizes:
        width = key_width = value_width = 7
        heads = kv_heads = None

    assert find_projections(Named(("q_proj", "k_proj", "v_proj", "o_proj")), Sizes()) == []


@pytest.mark.parametrize(
    ("path", "letters"),
    [
        ("encoder.self_attn.q_proj", "q"),
        ("heads.3.key", "k"),
        ("WV", "v"),
        ("to_kv", "kv"),
        ("kqv", "kqv"),
        ("key_value_proj", "kv"),
        ("attn.c_proj", ""),
        ("linears.0", ""),
    ],
)
def test_what_a_name_says(path: str, letters: str) -> None:
    assert read_name(path).letters == letters
    assert read_name(path).is_output == (path == "attn.c_proj")
