"""The same numbers as TransformerLens, on its own models, which are attention written by hand.

Runs where transformer_lens 3 is installed (3.9.0 was): version 4 has no HookedTransformer.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import edits
from headwise.experiments import (
    ablation,
    circuits,
    composition,
    direct_logit_attribution,
    head_scores,
    patching,
    projections,
)

lens = pytest.importorskip("transformer_lens")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module", params=["LN", "RMS", "rotary", "attention only", "grouped"])
def model(request: Any) -> Any:
    try:
        hooked, config = lens.HookedTransformer, lens.HookedTransformerConfig
    except ImportError as error:
        pytest.skip(str(error))
    own: dict[str, Any] = {
        "LN": {"normalization_type": "LN"},
        "RMS": {"normalization_type": "RMS"},
        "rotary": {"normalization_type": "LN", "positional_embedding_type": "rotary", "rotary_dim": 4},
        "attention only": {"normalization_type": None, "attn_only": True},
        "grouped": {"normalization_type": "RMS", "n_key_value_heads": 2},
    }[request.param]
    sizes = {"n_layers": 3, "d_model": 32, "n_ctx": 32, "d_head": 8, "n_heads": 4, "d_vocab": 40, "d_mlp": 64}
    found = hooked(config(**sizes, act_fn="gelu", seed=0, device="cpu", **own)).eval()
    generator = torch.Generator().manual_seed(0)
    for name, p in found.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        p.data = p.data + 0.1 * noise if p.ndim == 1 else (2 * p.data if "_E" in name or "pos" in name else 4 * p.data)
    return found


def ids(batch: int = 2, length: int = 12, seed: int = 0) -> Tensor:
    return torch.randint(0, 40, (batch, length), generator=torch.Generator().manual_seed(seed))


def difference(logits: Tensor) -> Tensor:
    return logits[:, -1, 3] - logits[:, -1, 4]


def test_projections_are_its_parameters(model: Any) -> None:
    for layer, found in enumerate(projections(model, ids()).values()):
        of = model.blocks[layer].attn
        for role, weight in (("q", of.W_Q), ("k", of.W_K), ("v", of.W_V), ("o", of.W_O)):
            torch.testing.assert_close(found.weight(role).float(), weight.detach())
        torch.testing.assert_close(found.biases["q"], of.b_Q.double(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found.biases["o"], of.b_O.double(), atol=1e-4, rtol=1e-4)
        assert found.rotated == (4 if model.cfg.positional_embedding_type == "rotary" else 0)


@pytest.mark.parametrize("kind", ["q", "k", "v"])
def test_composition(model: Any, kind: Any) -> None:
    theirs = model.all_composition_scores(kind.upper())
    found = composition(model, ids(), kind, folded=False).scores
    expected = torch.where(found.isnan(), torch.nan, theirs.double())
    torch.testing.assert_close(found, expected, equal_nan=True, atol=1e-5, rtol=1e-4)
    assert int((~found.isnan()).sum()) == 3 * 16


def test_eigenvalues(model: Any) -> None:
    found = circuits(model, ids(), folded=False)
    e, u, q, k, v, o = (getattr(model, name).detach() for name in ("W_E", "W_U", "W_Q", "W_K", "W_V", "W_O"))
    for layer in range(3):
        for head in range(4):
            ov = lens.FactoredMatrix(e @ v[layer, head], o[layer, head] @ u)
            values = ov.eigenvalues
            score = values.sum().real / values.abs().sum()
            torch.testing.assert_close(float(found.copying[layer, head]), float(score), atol=1e-4, rtol=1e-3)
            qk = lens.FactoredMatrix(e @ q[layer, head], k[layer, head].T @ e.T).eigenvalues
            assert found.matching is not None
            score = qk.sum().real / qk.abs().sum()
            torch.testing.assert_close(float(found.matching[layer, head]), float(score), atol=1e-4, rtol=1e-3)


def test_folded_weights(model: Any) -> None:
    if model.cfg.normalization_type != "LN":
        pytest.skip("fold_ln is of LayerNorm")
    state = model.fold_layer_norm({k: v.clone() for k, v in model.state_dict().items()})
    for layer, found in enumerate(projections(model, ids()).values()):
        for role in "qkv":
            theirs = state[f"blocks.{layer}.attn.W_{role.upper()}"]
            torch.testing.assert_close(found.weight(role, folded=True).float(), theirs, atol=1e-4, rtol=1e-3)


def test_direct_logit_attribution(model: Any) -> None:
    tokens, right, wrong = ids(), torch.tensor([5, 6]), torch.tensor([7, 8])
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens)
    found = direct_logit_attribution(model, tokens, right, wrong)
    stack = cache.stack_head_results(pos_slice=-1)  # [L · H, B, M]
    if model.cfg.normalization_type == "RMS":
        stack = stack / cache["ln_final.hook_scale"][:, -1] * model.ln_final.w
    elif model.cfg.normalization_type is not None:
        stack = (stack - stack.mean(-1, keepdim=True)) / cache["ln_final.hook_scale"][:, -1] * model.ln_final.w
    direction = model.W_U.T[right] - model.W_U.T[wrong]
    theirs = (stack * direction).sum(-1).T.reshape(2, 3, 4).detach()
    torch.testing.assert_close(found.heads.float(), theirs, atol=1e-4, rtol=1e-3)
    last = logits[:, -1]
    expected = last.gather(1, right[:, None]) - last.gather(1, wrong[:, None])
    torch.testing.assert_close(found.total.float(), expected[:, 0], atol=1e-4, rtol=1e-3)


def test_head_outputs_and_weights(model: Any) -> None:
    tokens = ids()
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens)
    outs: dict[str, Tensor] = {}

    def keep(out: Tensor, at: edits.Where) -> Tensor:
        outs[at.site] = out
        return out

    with torch.no_grad(), headwise.edit(model, edits.output("*", keep)), headwise.watch(model) as seen:
        model(tokens)
    for layer in range(3):
        theirs = cache["z", layer].transpose(1, 2)
        torch.testing.assert_close(outs[f"blocks.{layer}.attn"], theirs, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(seen[layer].weights(), cache["pattern", layer], atol=1e-5, rtol=1e-4)


def test_head_scores(model: Any) -> None:
    found = head_scores(model, 40, length=10, batch=3)
    block = headwise.analyses.repeated_block(40, 10, 3)
    with torch.no_grad():
        _, cache = model.run_with_cache(block)
    for layer in range(3):
        pattern = cache["pattern", layer]
        stripe = pattern.diagonal(-9, -2, -1)[..., 1:].mean((0, -1))  # the demo's, without its first cell
        torch.testing.assert_close(found.induction[layer], stripe, atol=1e-5, rtol=1e-4)
        before = pattern.diagonal(-1, -2, -1).mean((0, -1))
        torch.testing.assert_close(found.previous_token[layer], before, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("over", ["heads", "positions", "edges"])
def test_patching(model: Any, over: Any) -> None:
    clean, other = ids(1, 8), ids(1, 8, seed=1)
    with torch.no_grad():
        best, cache = model.run_with_cache(clean)
        worst = model(other)
    found = patching(model, clean, other, difference, over=over)
    best, worst = difference(best), difference(worst)
    for layer, head, query, key in [(0, 1, 3, 2), (1, 0, 7, 4), (2, 3, 7, 7), (2, 2, 7, 0)]:

        def hook(x: Tensor, hook: Any) -> Tensor:
            if over == "edges":
                x[:, head, query, key] = cache["pattern", layer][:, head, query, key]  # noqa: B023
            elif over == "positions":
                x[:, query, head] = cache["z", layer][:, query, head]  # noqa: B023
            else:
                x[:, :, head] = cache["z", layer][:, :, head]  # noqa: B023
            return x

        name = f"blocks.{layer}.attn.hook_{'pattern' if over == 'edges' else 'z'}"
        with torch.no_grad():
            patched = difference(model.run_with_hooks(other, fwd_hooks=[(name, hook)]))
        at = {"heads": (layer, head), "positions": (layer, head, query), "edges": (layer, head, query, key)}[over]
        theirs = float((patched - worst) / (best - worst))
        assert float(found.effects[at]) == pytest.approx(theirs, abs=1e-4, rel=1e-3)


def test_ablation(model: Any) -> None:
    tokens = ids()
    found = ablation(model, tokens, difference)

    def hook(x: Tensor, hook: Any) -> Tensor:
        x[:, :, 2] = 0.0
        return x

    with torch.no_grad():
        plain = difference(model(tokens))
        without = difference(model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_z", hook)]))
    assert float(found.changes[1, 2]) == pytest.approx(float((without - plain).mean()), abs=1e-4, rel=1e-3)
