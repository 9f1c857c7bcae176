"""The native kernels in graphs of torch.compile and torch.export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.native import operators
from headwise.native.library import instruction_set

pytestmark = pytest.mark.skipif(instruction_set() is None, reason="the native kernels are not here")

CALLS: dict[str, dict[str, Any]] = {
    "window": {"mask": masks.window(20, 3)},
    "causal, softcap": {"mask": masks.causal(), "softcap": 2.0},
    "documents, sinks": {"mask": masks.documents(torch.arange(70) // 30), "sinks": torch.tensor([0.5, -1.0])},
    "bias": {"bias": torch.randn(1, 2, 70, 70)},
    "slopes": {"slopes": torch.tensor([0.5, 0.1])},
}


def inputs(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2, 2, 70, 16, dtype=dtype, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("name", CALLS)
def test_a_compiled_call_is_the_eager_one(name: str) -> None:
    given = inputs()
    options = {key: x.clone().requires_grad_() if isinstance(x, Tensor) else x for key, x in CALLS[name].items()}
    trained = [*given, *(x for x in options.values() if isinstance(x, Tensor))]
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return headwise.attention(q, k, v, kernel="native", **options)

    compiled = torch.compile(call, backend=backend, fullgraph=True)(*given)
    assert any(
        node.target is torch.ops.headwise.attend.default or node.target is operators._attend
        for node in graphs[0].graph.nodes
    )
    eager = call(*given)
    torch.testing.assert_close(compiled, eager)
    for a, b in zip(*(torch.autograd.grad(out.square().sum(), trained) for out in (compiled, eager)), strict=True):
        torch.testing.assert_close(a, b)


def test_a_graph_keeps_it_where_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.kernels.native.instruction_set", lambda: "avx512")
    ran: list[str] = []
    real = operators.kernels.forward
    monkeypatch.setattr(
        operators.kernels, "forward", lambda *given, **kept: ran.append("native") or real(*given, **kept)
    )
    for options, expected in (({"mask": masks.window(5, 0)}, ["native"]), (CALLS["slopes"], ["native"]), ({}, [])):
        torch.compiler.reset()
        with torch.no_grad():
            torch.compile(lambda *given, o=options: headwise.attention(*given, **o), backend="eager")(*inputs())
        assert ran == expected
        ran.clear()


class Layer(torch.nn.Module):
    def __init__(self, kernel: str) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return headwise.attention(q, k, v, mask=masks.window(20, 0), kernel=self.kernel)


def test_an_exported_program_has_it_by_name_alone() -> None:
    given = tuple(x.detach() for x in inputs(torch.bfloat16))
    for kernel, has in (("native", True), ("auto", False)):
        program = torch.export.export(Layer(kernel), given)
        assert ("headwise" in program.graph_module.code) is has
        torch.testing.assert_close(program.module()(*given), Layer(kernel)(*given), rtol=2e-2, atol=2e-2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of torch itself
def test_a_package_of_aotinductor_calls_it(tmp_path: Path) -> None:
    given = tuple(x.detach() for x in inputs())
    program = torch.export.export(Layer("native"), given)
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "layer.pt2"))
    torch.testing.assert_close(torch._inductor.aoti_load_package(path)(*given), Layer("native")(*given))


def test_torch_finds_nothing_wrong_with_the_operators() -> None:
    q, k, v = inputs()
    bias = torch.randn(1, 2, 70, 70, requires_grad=True)
    allowed = torch.ones(1, 1, 70, 70, dtype=torch.bool).tril()
    numbers = (-operators.NO_LIMIT, operators.NO_LIMIT, 0.25, 0.0, 0.0)
    torch.library.opcheck(operators._attend, (q, k, v, allowed, bias, *torch.zeros(2, 2), None, *numbers))
    torch.library.opcheck(operators._attend, (q, k, v, None, None, None, None, torch.tensor(5), -9, 0, 0.25, 2.0, 0.1))
