"""Inputs that go where another one should."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, Cross, found, one, seeded
from tests.doctor.checks.styles import Plain, assert_at


class Three(Attention):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.three(query, key, value)

    def three(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = self.split(self.q(query)), self.split(self.k(key)), self.split(self.v(value))
        return self.out(self.merge((q @ k.mT / 2).softmax(-1) @ v))


class ValuesForKeys(Three):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.three(query, value, key)


class PassesValuesFirst(nn.Module):
    """torch's layer, called in the order of another library's."""

    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.mha(query, value, key)[0]


@pytest.mark.parametrize("module", [ValuesForKeys, PassesValuesFirst])
def test_keys_and_values_exchanged(module: type[nn.Module]) -> None:
    finding = one("argument_order", seeded(module))
    assert (finding.name, finding.severity) == ("argument-order", "bug")
    assert (
        finding.evidence
        == "of its inputs (query, key, value) the module computes its keys from value, its values from key"
    )
    assert_at(finding, module, f"class {module.__name__}")


class SameLengths(Cross):
    """A memory as long as the queries; its values are of the wrong one."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        if x.shape != memory.shape:
            raise ValueError("as many in both")
        weights = (self.split(self.q(x)) @ self.split(self.k(memory)).mT / 2).softmax(-1)
        return self.out(self.merge(weights @ self.split(self.v(x))))


def test_values_of_the_queries_input() -> None:
    finding = one("argument_order", seeded(SameLengths))
    assert (finding.name, finding.severity) == ("argument-order", "bug")
    assert finding.evidence == "of its inputs (query, memory) the module computes its values from query"


class XFirst(SameLengths):
    """Queries of the second argument, keys and values of the first."""

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.second_attends(x, context)

    def second_attends(self, x: Tensor, context: Tensor) -> Tensor:
        if x.shape != context.shape:
            raise ValueError("as many in both")
        weights = (self.split(self.q(context)) @ self.split(self.k(x)).mT / 2).softmax(-1)
        return self.out(self.merge(weights @ self.split(self.v(x))))


def test_queries_of_the_second_argument() -> None:
    finding = one("argument_order", seeded(XFirst))
    assert finding.evidence.endswith("its queries from memory, its keys from query, its values from query")


# Healthy.


class ContextFirst(XFirst):
    """Queries of the first argument: its place says more than the name of the other one."""

    def forward(self, context: Tensor, x: Tensor) -> Tensor:
        return self.second_attends(x, context)


class ValuesFirst(Three):
    """Its signature says it."""

    def forward(self, values: Tensor, keys: Tensor, query: Tensor) -> Tensor:
        return self.three(query, keys, values)


class EinsumCross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = 2
        self.to_q, self.to_kv, self.to_out = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q = self.to_q(x).unflatten(-1, (2, 4))
        k, v = self.to_kv(context).unflatten(-1, (2, 2, 4)).unbind(2)
        weights = (torch.einsum("bihd,bjhd->bhij", q, k) / 2).softmax(-1)
        return self.to_out(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


@pytest.mark.parametrize("module", [Three, ValuesFirst, Cross, EinsumCross, ContextFirst])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("argument_order", seeded(module)) == []


def test_torchs_layers_are_healthy() -> None:
    assert found("argument_order", seeded(nn.MultiheadAttention, 16, 4)) == []
    assert found("argument_order", seeded(nn.TransformerDecoderLayer, 16, 4, 32, batch_first=True)) == []


def test_one_input_cannot_be_exchanged() -> None:
    with pytest.raises(NotChecked, match="one input"):
        found("argument_order", seeded(Plain))
