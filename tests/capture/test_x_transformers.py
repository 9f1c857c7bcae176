"""x-transformers, whose options are many: what is seen equals the weights that it returns, the rest is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from tests.capture.libraries.models.x_transformers import OPTIONS
from tests.capture.parity import assert_weights, watched

with warnings.catch_warnings():  # it compiles with TorchScript as it is imported, which torch has deprecated
    warnings.filterwarnings("ignore", message="`torch.jit.script")
    import x_transformers
    from x_transformers import x_transformers as layers

TOKENS = torch.tensor([[3, 17, 4, 11, 9, 2], [8, 5, 14, 1, 6, 0]])
REAL = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]).bool()

SEEN = (
    *("plain", "rotary", "alibi", "relative", "dynamic bias", "memory keys", "grouped", "one key head", "qk norm"),
    *("sinks", "zero key", "value width", "gated values"),
    "topk",  # a mask, though one that depends on the scores
)
FLASH = ("plain", "rotary", "alibi", "memory keys", "grouped", "one key head", "zero key")
REFUSED = ("softclamp after a bias",)
KEPT = ("talking heads", "selective", "hard", "sigmoid", "l2")


def build(stack: type = x_transformers.Decoder, **options: Any) -> Any:
    inner = stack(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
    model = x_transformers.TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=inner).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "sink" in name or "mem_k" in name or "slopes" in name:
                p.copy_(torch.randn_like(p))
    return model


def expected(model: Any, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """The weights that each layer returns, computed without flash attention."""
    attends = [m for m in model.modules() if isinstance(m, layers.Attend)]
    before = [(m, m.flash) for m in attends]
    for m in attends:
        m.flash = False
    try:
        with torch.no_grad():
            _, weights = model(*args, return_attn=True, **kwargs)
    finally:
        for m, flash in before:
            m.flash = flash
    return list(weights)


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("stack", [x_transformers.Decoder, x_transformers.Encoder])
@pytest.mark.parametrize("name", SEEN)
def test_weights(name: str, stack: type, padded: bool) -> None:
    model = build(stack, **OPTIONS[name])
    inputs = {"mask": REAL} if padded else {}
    seen, _ = watched(model, TOKENS, **inputs)
    assert [site.status for site in seen.coverage()] == ["seen"] * 2
    assert [site.name for site in seen.coverage()] == [f"attn_layers.layers.{i}.1.attend" for i in (0, 2)]
    for layer, (record, weights) in enumerate(zip(seen, expected(model, TOKENS, **inputs), strict=True)):
        weights = weights[..., 1:] if name == "sinks" else weights
        assert_weights(record, weights)
        assert record.site is not None
        assert (record.site.kind, record.site.layer) == ("self", layer)
        extra = record.shape[3] - 6
        assert record.site.causal == (stack is x_transformers.Decoder), extra


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("name", FLASH)
def test_weights_of_flash(name: str, padded: bool) -> None:
    model = build(attn_flash=True, **OPTIONS[name])
    inputs = {"mask": REAL} if padded else {}
    seen, _ = watched(model, TOKENS, **inputs)
    assert [(site.status, site.how) for site in seen.coverage()] == [("seen", "scaled_dot_product_attention")] * 2
    for record, weights in zip(seen, expected(model, TOKENS, **inputs), strict=True):
        assert_weights(record, weights)


@pytest.mark.parametrize("name", KEPT)
def test_scores_that_no_rule_describes_are_kept(name: str) -> None:
    model = build(**OPTIONS[name])
    seen, _ = watched(model, TOKENS)
    for record, weights in zip(seen, expected(model, TOKENS), strict=True):
        assert_weights(record, weights)


def test_heads_that_are_mixed_after_the_softmax() -> None:
    model = build(**OPTIONS["talking weights"])
    seen, _ = watched(model, TOKENS)
    attends = [m for m in model.modules() if isinstance(m, layers.Attend)]
    for record, weights, attend in zip(seen, expected(model, TOKENS), attends, strict=True):
        torch.testing.assert_close(record.weights(), weights, rtol=0, atol=1e-5)
        assert_weights(record, attend.post_softmax_talking_heads(weights).detach())


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_something_else_is_not_shown(name: str) -> None:
    seen, _ = watched(build(**OPTIONS[name]), TOKENS)
    assert len(seen) == 0
    assert {site.status for site in seen.coverage()} <= {"refused", "missed"}
    assert len(seen.coverage()) == 2


def test_cross_attention() -> None:
    model = build(cross_attend=True)
    context, real = torch.randn(2, 5, 32), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    seen, _ = watched(model, TOKENS, context=context, context_mask=real)
    sites = [record.site for record in seen if record.site]
    assert [site.kind for site in sites] == ["self", "cross"] * 2
    assert [site.causal for site in sites] == [True, False] * 2
    for record, weights in zip(seen, expected(model, TOKENS, context=context, context_mask=real), strict=True):
        assert_weights(record, weights)
