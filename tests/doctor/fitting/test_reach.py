"""Which weights the output depends on, and what the search does with readings that lack one of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.doctor.fitting.fit import fit
from headwise.doctor.fitting.observed import Observed, observe
from headwise.doctor.fitting.projections import Projections, find_projections
from headwise.doctor.fitting.reach import holds, weights_that_count
from headwise.doctor.fitting.search import Search
from headwise.doctor.patient import Patient


class Layer(nn.Module):
    """Attention with weights around it, each of which may be left out."""

    def __init__(self, width: int = 16, heads: int = 2, scale: float = 1.0) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))
        self.spare = nn.Linear(width, width)
        self.after = nn.Parameter(torch.eye(width))
        self.bias = nn.Parameter(torch.zeros(heads, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        q, k, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        scores = self.scale * (q @ k.transpose(-1, -2) / (m // self.heads) ** 0.5 + self.bias[:, :n, :n])
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, m)) @ self.after


OWN = ["q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"]


def seen(module: nn.Module) -> tuple[Observed, list[Projections]]:
    interface = Patient(module).interface
    found = observe(interface, 0)
    return found, find_projections(found.interface.module, interface)


def test_weights_that_count() -> None:
    """Not what is never used, nor what does nothing as it is: a bias of 0, the identity."""
    observed, readings = seen(Layer())
    before = {name: x.clone() for name, x in observed.interface.module.state_dict().items()}
    weights = weights_that_count(observed)
    assert list(weights) == OWN
    assert holds(readings[0], weights)
    assert all(torch.equal(x, before[name]) for name, x in observed.interface.module.state_dict().items())


def test_a_reading_lacks_what_is_no_projection() -> None:
    layer = Layer()
    nn.init.normal_(layer.bias)
    nn.init.normal_(layer.after)
    observed, readings = seen(layer)
    weights = weights_that_count(observed)
    assert sorted(weights) == sorted([*OWN, "after", "bias"])
    assert not any(holds(reading, weights) for reading in readings)


def test_no_deviation_is_tried_where_none_can_be() -> None:
    """With a learned bias; the same mistake without one is found."""
    torch.manual_seed(0)
    found = fit(Patient(Layer(scale=0.3)))
    assert [each.name for each in found.deviations] == ["wrong-scale"]
    layer = Layer(scale=0.3)
    nn.init.normal_(layer.bias)
    observed, readings = seen(layer)
    search = Search(observed, readings, "self")
    assert search.best() is None
    assert search.readings == []


class PerHead(nn.Module):
    """Weights and biases with a dimension of heads, as in TransformerLens."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        each = width // heads
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(heads, width, each) / 4) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(torch.randn(heads, each)) for _ in range(3))
        self.W_O = nn.Parameter(torch.randn(heads, each, width) / 4)
        self.b_O = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            torch.einsum("bnm,hmd->bhnd", x, w) + b[:, None]
            for w, b in ((self.W_Q, self.b_Q), (self.W_K, self.b_K), (self.W_V, self.b_V))
        )
        return torch.einsum("bhnd,hdm->bnm", (0.3 * q @ k.transpose(-1, -2)).softmax(-1) @ v, self.W_O) + self.b_O


def test_a_bias_of_each_head_is_a_part_of_a_reading() -> None:
    observed, readings = seen(PerHead())
    weights = weights_that_count(observed)
    assert {"b_Q", "b_V"} <= weights.keys()
    assert holds(readings[0], weights)


def test_a_module_that_makes_its_weights_of_others_is_searched_as_before() -> None:
    layer = Layer(scale=0.3)
    nn.utils.parametrizations.weight_norm(layer.q_proj)
    assert weights_that_count(seen(layer)[0]) == {}
