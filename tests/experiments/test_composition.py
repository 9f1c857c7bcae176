"""Composition scores are those of the whole matrices [M, M]."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
import transformers
from torch import Tensor

from headwise.experiments import composition, projections

IDS = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    found = transformers.LlamaForCausalLM._from_config(config).eval()
    for p in found.parameters():
        p.data = p.data + 0.3 * torch.randn_like(p) if p.ndim == 1 else p.data
    return found


def whole(model: Any, layer: int, head: int, folded: bool) -> tuple[Tensor, Tensor]:
    """(W_OV, W_QK) from the model's own names."""
    block = model.model.layers[layer]
    gain = block.input_layernorm.weight.detach().double()[:, None] if folded else 1.0
    own, group = slice(8 * head, 8 * head + 8), slice(8 * (head // 2), 8 * (head // 2) + 8)
    q, k, v = (getattr(block.self_attn, f"{x}_proj").weight.detach().double().T for x in "qkv")
    o = block.self_attn.o_proj.weight.detach().double().T
    return (gain * v[:, group]) @ o[own], (gain * q[:, own]) @ (gain * k[:, group]).T


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("kind", ["q", "k", "v"])
def test_each_pair_of_heads(model: Any, kind: Literal["q", "k", "v"], folded: bool) -> None:
    found = composition(model, IDS, kind, folded=folded)
    assert found.layers == tuple(f"model.layers.{layer}.self_attn" for layer in range(3))
    for one, two in ((0, 1), (0, 2), (1, 2)):
        for head in range(4):
            for other in range(4):
                ov, _ = whole(model, one, head, folded)
                values, scores = whole(model, two, other, folded)
                read = {"q": scores, "k": scores.T, "v": values}[kind]
                expected = float((ov @ read).norm() / (ov.norm() * read.norm()))
                assert float(found.scores[one, head, two, other]) == pytest.approx(expected, rel=1e-6)
    assert int((~found.scores.isnan()).sum()) == 3 * 16


def test_the_baseline_is_that_of_random_matrices(model: Any) -> None:
    p = projections(model, IDS)["model.layers.0.self_attn"]
    generator = torch.Generator().manual_seed(1)
    a, b, c, d = (
        torch.randn(200, *shape, generator=generator, dtype=torch.float64)
        for shape in (p.weight("v").shape[1:], p.weight("o").shape[1:], (32, 8), (8, 32))
    )
    lengths = (a @ b @ c @ d).norm(dim=(1, 2)) / ((a @ b).norm(dim=(1, 2)) * (c @ d).norm(dim=(1, 2)))
    for kind in ("q", "k", "v"):
        assert composition(model, IDS, kind).baseline == pytest.approx(float(lengths.mean()), rel=0.1)


@pytest.mark.parametrize("kind", ["q", "k", "v"])
def test_keys_and_values_of_cross_attention_read_the_other_sequence(kind: Literal["q", "k", "v"]) -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=16, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    given = {"input_ids": IDS, "decoder_input_ids": IDS}
    found = composition(transformers.T5ForConditionalGeneration(config).eval(), given, kind, where="decoder")
    for i, _ in enumerate(found.layers):
        for j in range(i + 1, len(found.layers)):
            unknown = bool(found.scores[i, :, j].isnan().all())
            assert unknown == (kind != "q" and "EncDec" in found.layers[j])
