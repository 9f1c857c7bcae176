"""Every scheme inside torch.compile(fullgraph=True) and torch.export gives what it gives outside."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise import masks
from headwise.nn.positions import (
    Alibi,
    DynamicNTK,
    Learned,
    Linear,
    Llama3,
    Positions,
    Rope,
    Rope2D,
    ShawRelative,
    Sinusoidal,
    T5Buckets,
    Yarn,
)

REAL = torch.tensor([[False, True, True, True], [True, True, True, True]])


class Scores(nn.Module):
    """The scores and the output of attention with a scheme, as a module uses it."""

    def __init__(self, scheme: Positions, mask: masks.Mask | None = None) -> None:
        super().__init__()
        self.scheme = scheme
        self.mask = mask

    def forward(self, q: Tensor, k: Tensor, ids: Tensor) -> Tensor:
        length = ids.shape[-1] if self.scheme.depends_on_length else None
        scores = self.scheme.rotate(q, ids, length) @ self.scheme.rotate(k, ids, length).mT
        bias = self.scheme.bias(q, ids, ids, mask=self.mask)
        weights = (scores if bias is None else scores + bias).softmax(-1)
        out = weights @ k
        if self.scheme.uses_values:
            out = out + self.scheme.values(weights, ids, ids)
        return out


SCHEMES = {
    "rope": lambda: Scores(Rope(8)),
    "rope-interleaved-partial": lambda: Scores(Rope(8, interleaved=True, rotary_dim=4)),
    "rope-linear": lambda: Scores(Rope(8, scaling=Linear(2.0))),
    "rope-dynamic": lambda: Scores(Rope(8, scaling=DynamicNTK(2.0, 3))),
    "rope-yarn": lambda: Scores(Rope(8, scaling=Yarn(4.0, 16))),
    "rope-llama3": lambda: Scores(Rope(8, scaling=Llama3(8.0, 1.0, 4.0, 16))),
    "alibi": lambda: Scores(Alibi(3)),
    "alibi-causal": lambda: Scores(Alibi(3), masks.causal()),
    "alibi-causal-padding": lambda: Scores(Alibi(3), masks.causal() & masks.padding(REAL)),
    "t5": lambda: Scores(T5Buckets(3)),
    "t5-decoder": lambda: Scores(T5Buckets(3, bidirectional=False)),
    "shaw": lambda: Scores(ShawRelative(8, 2)),
    "shaw-values": lambda: Scores(ShawRelative(8, (2, 1), values=True)),
}


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4, 8), torch.tensor([[0, 0, 1, 2], [3, 4, 5, 6]])


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


SLOW = ("rope-linear", "rope-yarn", "alibi-causal", "t5-decoder", "shaw")  # nearly the same operations as another


@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in SCHEMES])
def test_compiled_in_one_graph(name: str) -> None:
    module, given = SCHEMES[name](), inputs()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), module(*given))


@pytest.mark.parametrize("name", ["rope", "rope-dynamic", "alibi", "t5", "shaw-values"])
def test_one_graph_for_every_length(name: str) -> None:
    module, (q, k, ids) = SCHEMES[name](), inputs()
    length = torch.export.Dim("length", min=2, max=64)
    shapes = ({2: length}, {2: length}, {1: length})
    exported = torch.export.export(module, (q, k, ids), dynamic_shapes=shapes).module()
    longer = (*torch.randn(2, 2, 3, 9, 8).unbind(), torch.arange(9).expand(2, 9))
    torch.testing.assert_close(exported(*longer), module(*longer))


class Grid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rope = Rope2D(8)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        return self.rope.rotate(x, places)


@pytest.mark.parametrize("how", ["compile", "export"])
def test_grids_and_absolute_positions(how: str) -> None:
    x, ids = torch.randn(2, 3, 4, 8), torch.tensor([[0, 0, 1, 2], [3, 4, 5, 6]])
    places = torch.cartesian_prod(torch.arange(2), torch.arange(2))
    cases = [(Grid(), (x, places)), (Sinusoidal(8), (ids,)), (Sinusoidal(8, interleaved=False), (ids,))]
    for module, given in [*cases, (Learned(8, 4), (ids,))]:
        if how == "compile":
            inside = torch.compile(module, fullgraph=True, backend="aot_eager")
        else:
            inside = torch.export.export(module, given).module()
        torch.testing.assert_close(inside(*given), module(*given))


def test_gradients_reach_the_tables_through_a_compiled_graph() -> None:
    module, given = Scores(ShawRelative(8, 2, values=True)), inputs()
    torch.compile(module, fullgraph=True, backend="aot_eager")(*given).square().sum().backward()
    compiled = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    module(*given).square().sum().backward()
    torch.testing.assert_close(compiled, [parameter.grad for parameter in module.parameters()])
