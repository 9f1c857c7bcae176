"""The registered attention against eager attention: what models pass to it, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.testing import assert_close

import headwise
import headwise.transformers
from headwise import edits
from headwise.errors import ArgumentError
from headwise.transformers import attend
from tests.capture.generations import Case
from tests.transformers.generations import outcome

pytestmark = [  # of transformers before 5
    pytest.mark.filterwarnings("ignore:`output_attentions=True` is not supported:UserWarning"),  # ours returns weights
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # its masks, compiled
]

SMALL = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 40},
    **{"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 4},
    "gemma2": {"sliding_window": 4, "attn_logit_softcapping": 0.3, "query_pre_attn_scalar": 20},
    "gpt_oss": {"sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
    "llama4_text": {"attention_chunk_size": 4, "num_local_experts": 2, "layer_types": ["chunked_attention"] * 2},
}
LENGTH = 10


def make(family: str, implementation: str = "eager") -> Any:
    """A causal model with random weights, and weights of attention that are not all alike."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**SMALL, **FAMILIES[family]})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    with torch.no_grad():
        for x in model.parameters():
            x.mul_(4.0) if x.ndim == 2 else None
    return model


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    return make(request.param)


def tokens(batch: int = 2) -> dict[str, Tensor]:
    """Token ids, of which the first of the second example are padding."""
    ids = torch.randint(3, 40, (batch, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1:, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


def test_logits_and_gradients_are_those_of_eager_attention(model: Any) -> None:
    given, real, found = tokens(), tokens()["attention_mask"].bool(), []
    for implementation in ("eager", "headwise"):
        model.set_attn_implementation(implementation)
        model.zero_grad(set_to_none=True)
        logits = model(**given).logits[real]
        logits.square().mean().backward()
        found.append((logits.detach(), {name: x.grad for name, x in model.named_parameters() if x.grad is not None}))
    (expected, gradients), (logits, ours) = found
    assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == ours.keys()
    for name, x in gradients.items():
        assert_close(ours[name], x, rtol=1e-4, atol=1e-5, msg=name)


# `scripts/generations --implementation headwise` has all families, ways and caches.
@pytest.mark.parametrize("family", ["gemma2", "gpt-oss", "bart"])
@pytest.mark.parametrize("cache", ["default", "static"])
@pytest.mark.parametrize("way", ["greedy", "beams"])
def test_generate_gives_the_same_logits(family: str, way: str, cache: str) -> None:
    found = outcome(Case(family, way, cache, padded=True, implementation="eager"))
    assert (found.status, found.detail) == ("equal", "")


def test_packed_sequences(model: Any) -> None:
    """gpt-oss packs nothing, with eager attention neither; in other models no sequence sees another."""
    ids = tokens(1)["input_ids"]
    positions, found = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]]), []
    for implementation in ("eager", "headwise"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found.append(model(input_ids=ids, position_ids=positions, use_cache=False).logits)
    assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_weights_are_returned_when_they_are_asked_for(model: Any) -> None:
    found = []
    for implementation in ("eager", "headwise"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found.append(model(**tokens(), output_attentions=True).attentions)
    real = tokens()["attention_mask"].bool()
    assert len(found[0]) == len(found[1]) == 2
    for expected, weights in zip(*found, strict=True):
        assert_close(weights.transpose(1, 2)[real], expected.transpose(1, 2)[real], rtol=1e-4, atol=1e-5)


def test_a_mask_of_the_caller_is_honoured(model: Any) -> None:
    given = tokens()
    lowest = torch.finfo(torch.float32).min
    mask = torch.full((2, 1, LENGTH, LENGTH), lowest).triu(1)
    mask[:, :, 6:, 2] = lowest
    found = []
    for implementation in ("eager", "headwise"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found.append(model(input_ids=given["input_ids"], attention_mask=mask).logits)
    assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


def test_what_is_made_is_made_once_for_a_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AttentionMaskInterface

    made: list[Any] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(headwise.transformers.make_mask(*args, **kwargs))
        return made[-1]

    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "headwise", counted)
    model = make("llama", "headwise")
    model(**tokens())
    assert len(made) == 1


def test_compiled_in_one_graph_it_gives_the_same() -> None:
    model = make("gemma2", "headwise")
    given = {"input_ids": tokens(1)["input_ids"], "use_cache": False}
    with torch.no_grad():
        expected = model(**given).logits
        compiled = torch.compile(model, backend="eager", fullgraph=True)(**given).logits
    assert_close(compiled, expected, rtol=1e-5, atol=1e-5)


def test_checkpointing_gives_the_same_gradients() -> None:
    gradients = []
    for checkpointed in (False, True):
        model = make("mistral", "headwise").train()
        if checkpointed:
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()  # 5.x, 4.x
        model(**tokens(), use_cache=False).logits.square().mean().backward()
        gradients.append(model.get_input_embeddings().weight.grad)
    assert_close(gradients[1], gradients[0])


def test_a_registered_call_is_watched_once_and_edited() -> None:
    model = make("gemma2", "headwise")
    with torch.no_grad(), headwise.watch(model) as seen:
        out = model(**tokens(), output_attentions=True)
    assert len(seen) == 2
    for record, weights in zip(seen, out.attentions, strict=True):
        assert_close(record.weights(), weights)
    with torch.no_grad(), headwise.edit(model, edits.ablate("model.layers.0*", heads=[1])):
        edited = model(**tokens()).logits
    assert not torch.allclose(edited, out.logits)


class Layer(nn.Module):
    """A layer that no model of transformers has."""


def heads(length: int = 4) -> Tensor:
    return torch.randn(1, 2, length, 8, generator=torch.Generator().manual_seed(2))


def test_an_argument_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Received: tempering, from Layer"):
        attend(Layer(), heads(), heads(), heads(), None, tempering=2.0)


def test_causal_only_if_it_is_said() -> None:
    layer: Any = Layer()
    layer.is_causal = True  # as models say of themselves, although their mask is made
    whole, _ = attend(layer, heads(), heads(), heads(), None)
    assert_close(whole.transpose(1, 2), headwise.attention(heads(), heads(), heads()))
    causal, _ = attend(layer, heads(), heads(), heads(), None, is_causal=True)
    assert_close(causal.transpose(1, 2), headwise.attention(heads(), heads(), heads(), mask=headwise.masks.causal()))


def test_sequences_by_their_starts() -> None:
    out, _ = attend(Layer(), heads(), heads(), heads(), None, cu_seq_lens_q=torch.tensor([0, 1, 4]))
    mask = headwise.masks.documents([0, 1, 1, 1])
    assert_close(out.transpose(1, 2), headwise.attention(heads(), heads(), heads(), mask=mask))


def test_keys_that_an_indexer_chose() -> None:
    _, weights = attend(
        Layer(),
        heads(),
        heads(),
        heads(),
        None,
        indices=torch.tensor([[[0, 1], [1, 1], [2, 3], [0, 3]]]),
        output_attentions=True,
    )
    assert weights is not None
    assert (weights[0, 0] > 0).tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 1]]


def test_a_static_cache_is_read_without_its_empty_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(q: Tensor, k: Tensor, v: Tensor, **more: Any) -> Tensor:
        read.append(k.shape[2])
        return headwise.attention(q, k, v, **more)

    monkeypatch.setattr("headwise.transformers.attention.attention", counted)
    mask = torch.full((1, 1, 1, 16), torch.finfo(torch.float32).min)
    mask[..., :4] = 0.0
    out, _ = attend(Layer(), heads()[:, :, :1], heads(16), heads(16), mask)
    assert read == [4]
    expected = headwise.attention(heads()[:, :, :1], heads(16)[:, :, :4], heads(16)[:, :, :4])
    assert_close(out.transpose(1, 2), expected)


@pytest.mark.parametrize(("name", "bugs"), [("leaky", ["mask-ignored"]), ("headwise", [])])
def test_the_doctor_names_a_registered_function_that_ignores_its_mask(name: str, bugs: list[str]) -> None:
    from headwise.doctor import diagnose_model

    def leaky(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **more: Any) -> Any:
        return headwise.attention(q, k, v, scale=scaling).transpose(1, 2), None

    transformers.AttentionInterface.register("leaky", leaky)  # and no masks, which transformers does not notice
    try:
        model = make("llama", name)
        (diagnosis,) = diagnose_model(model, lambda: model(**tokens(), use_cache=False))
    finally:
        del transformers.AttentionInterface._global_mapping["leaky"]
    assert [finding.name for finding in diagnosis.bugs] == bugs
