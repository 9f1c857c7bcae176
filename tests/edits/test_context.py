"""`headwise.edit` in every kind of model, beside a watch, in training, and when something goes wrong."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import headwise
from headwise import edits
from headwise.capture.functions import recogniser_here
from headwise.edits import Edit, Where
from headwise.errors import ArgumentError, DtypeError, EditRefused, RecordError
from headwise.functional import editors
from tests.capture.parity import assert_weights
from tests.edits import oracle
from tests.edits.test_generate import llama

TOKENS = torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]])


EDIT = edits.block("*", queries=slice(1, None), keys=0)
CHANGE = oracle.blocked(1, 0)


@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1)])
@pytest.mark.parametrize("heads_first", [False, True])
def test_what_is_learned_before_the_softmax_learns(shape: tuple[int, ...], heads_first: bool) -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = nn.Parameter(torch.full(shape, 0.7))
            self.bias = nn.Parameter(torch.randn(4, 5, 5))

        def forward(self, x: Tensor, hotter: float = 1.0) -> Tensor:
            q, k, v = x.unbind()
            scores = q.flatten(0, 1) @ k.flatten(0, 1).mT if heads_first else q @ k.mT
            scores = scores.view(2, 4, 5, 5) * self.temperature + self.bias
            weights = (scores / hotter).softmax(-1)
            out = weights.flatten(0, 1) @ v.flatten(0, 1) if heads_first else weights @ v
            return out.view(2, 4, 5, 8)

    model, x = Learned(), torch.randn(3, 2, 4, 5, 8, requires_grad=True)
    given = [*model.parameters(), x]
    expected = torch.autograd.grad(model(x, 2.0).pow(2).sum(), given)
    with headwise.edit(model, edits.temperature("*", 2.0)):
        found = torch.autograd.grad(model(x).pow(2).sum(), given)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_the_importance_of_heads_is_a_gradient(how: str) -> None:
    """Michel et al. 2019: dL/dξ of a factor ξ on each head; here against a difference."""
    model = llama(how).double()
    factors = torch.ones(4, dtype=torch.double, requires_grad=True)

    def loss_of(logits: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())

    with headwise.edit(model, edits.head_mask("layers.0", factors)):
        loss_of(model(TOKENS).logits).backward()

    def loss(h: float) -> float:
        moved = torch.tensor([1.0, 1.0 + h, 1.0, 1.0], dtype=torch.double)
        with torch.no_grad(), headwise.edit(model, edits.head_mask("layers.0", moved)):
            return float(loss_of(model(TOKENS).logits))

    # The norms compute in float32.
    assert float(factors.grad[1]) == pytest.approx((loss(0.01) - loss(-0.01)) / 0.02, rel=1e-2)


@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("outside", ["watch", "edit"])
def test_records_are_of_the_edited_calls(how: str, outside: str) -> None:
    model, eager = llama(how), llama("eager")
    with torch.no_grad(), oracle.changed(**CHANGE):
        expected = eager(TOKENS, output_attentions=True)
    contexts = [headwise.watch(model), headwise.edit(model, EDIT)]
    first, second = contexts if outside == "watch" else contexts[::-1]
    with torch.no_grad(), first as one, second as two:
        out = model(TOKENS)
    seen: Any = one if outside == "watch" else two
    torch.testing.assert_close(out.logits, expected.logits, rtol=1e-4, atol=1e-4)
    assert [site.status for site in seen.coverage()] == ["seen"] * 2
    for record, weights in zip(seen, expected.attentions, strict=True):
        assert_weights(record, weights)


def test_weights_that_the_model_returns_are_edited() -> None:
    model = llama("eager")
    with torch.no_grad(), oracle.changed(**CHANGE):
        expected = model(TOKENS, output_attentions=True)
    with torch.no_grad(), headwise.edit(model, EDIT):
        found = model(TOKENS, output_attentions=True)
    for one, two in zip(found.attentions, expected.attentions, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_of_torch(average: bool, need_weights: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad(), headwise.edit(module, EDIT):
        out, weights = module(x, x, x, need_weights=need_weights, average_attn_weights=average)
    q, k, v = (each.unflatten(-1, (4, 4)).transpose(1, 2) for each in torch.nn.functional.linear(
        x, module.in_proj_weight, module.in_proj_bias).chunk(3, -1))  # fmt: skip
    s = q @ k.mT * 0.5
    s[:, :, 1:, 0] = -torch.inf
    expected = s.softmax(-1)
    with torch.no_grad():
        torch.testing.assert_close(out, module.out_proj((expected @ v).transpose(1, 2).flatten(2)))
    assert (weights is not None) == need_weights
    if weights is not None:
        torch.testing.assert_close(weights, expected.mean(1) if average else expected)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention() -> None:
    class Flex(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out = flex_attention(x, x, x)
            assert isinstance(out, Tensor)
            return out

    model, q = Flex(), torch.randn(1, 2, 4, 8)
    with torch.no_grad(), headwise.edit(model, edits.block("*", keys=0)):
        found = model(q)
    expected = headwise.attention(q, q, q, mask=headwise.masks.padding([0, 1, 1, 1]))
    torch.testing.assert_close(found, expected)


def test_numbers_of_layers_and_what_was_edited() -> None:
    model = llama("sdpa")
    with torch.no_grad(), headwise.edit(model, edits.ablate(1)) as changed:
        shown = changed.plan(TOKENS)
    assert changed.sites == ["model.layers.1.self_attn"]
    assert shown == "model.layers.1.self_attn: ablate; the model's own kernel"
    with torch.no_grad(), headwise.edit(model, edits.temperature(0, 2.0)) as changed:
        shown = changed.plan(TOKENS)
    assert shown == "model.layers.0.self_attn: temperature; sdpa, about 1 × the time"
    with torch.no_grad(), headwise.edit(model, edits.topk("*", 2)) as changed:
        shown = changed.plan(TOKENS)
    assert shown.startswith("model.layers.0.self_attn: topk; by rows, for topk, about ")


def test_an_edit_that_is_at_no_place_is_an_error_at_the_end() -> None:
    model = llama("sdpa")
    with (
        pytest.raises(
            ArgumentError, match=r"edit: ablate: where='layers\.7': no attention was seen .*nearest: model\.layers"
        ),
        headwise.edit(model, edits.ablate("layers.7")),
    ):
        model(TOKENS)
    with pytest.raises(KeyError, match="mine"), headwise.edit(model, edits.ablate("layers.7")):
        raise KeyError("mine")


def fail(*_: Any) -> Any:
    raise KeyError("mine")


RAISING = {
    "a call": edits.call("*", fail),
    "weights": edits.weights("*", fail),
    "an output": edits.output("*", fail),
    "a position": edits.block("*", keys=fail),
    "the model": edits.ablate("*"),
}


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("name", RAISING)
@pytest.mark.parametrize(  # flex_attention is compiled first
    "how", ["sdpa", "eager", pytest.param("flex_attention", marks=pytest.mark.slow), "multi-head"]
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # of FlexAttention
def test_nothing_is_left_behind(how: str, name: str, watched: bool) -> None:
    model: Any = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    given = torch.randn(2, 5, 8)
    if how != "multi-head":
        model, given = llama(how), TOKENS
    model.eval()

    def run() -> Tensor:
        with torch.no_grad():
            out = model(given)
        found: Tensor = out if isinstance(out, Tensor) else out.logits
        return found

    def state() -> list[Any]:
        hooks = [[len(each) for each in (m._forward_hooks, m._forward_pre_hooks)] for m in model.modules()]
        return [
            hooks,
            [sorted(vars(m)) for m in model.modules()],
            editors(),
            torch.backends.mha.get_fastpath_enabled(),
        ]

    before, left = run(), state()
    removable = next(iter(model.modules())).register_forward_hook(fail) if name == "the model" else None
    with (
        pytest.raises(KeyError, match="mine"),
        headwise.watch(model) if watched else contextlib.nullcontext(),
        headwise.edit(model, RAISING[name], tokens=[[*"abcde"], [*"edcba"]]),
    ):
        run()
    if removable is not None:
        removable.remove()
    assert state() == left
    assert torch.equal(run(), before)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_what_cannot_be_edited_is_refused_by_name() -> None:
    class Scripted(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return torch.softmax(q @ q.mT, -1) @ q

    model = nn.Sequential(nn.Identity(), torch.jit.script(Scripted()))
    with pytest.raises(EditRefused, match=r"^1 cannot be edited: a ScriptModule"), headwise.edit(model, EDIT):
        pass

    class Changed(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return ((q @ q.mT).softmax(-1) * 0.5) @ q

    model = nn.Sequential(Changed())
    with pytest.raises(EditRefused, match=r"^0 cannot be edited: .*changed by `mul`"), headwise.edit(model, EDIT):
        model(torch.randn(1, 2, 4, 8))


@pytest.mark.parametrize(
    ("model", "given", "error", "message"),
    [
        (nn.Identity(), [], ArgumentError, r"expected at least one edit\. Received: edits=\[\]"),
        (nn.Identity(), ["ablate"], DtypeError, r"expected edits, such as .*Received: str"),
        ("gpt2", [EDIT], DtypeError, r"expected a torch\.nn\.Module\. Received: str"),
    ],
)
def test_bad_arguments(model: Any, given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        headwise.edit(model, given)


def test_an_argument_that_an_edit_does_not_have() -> None:
    with pytest.raises(DtypeError, match=r"ablate: unknown argument. Received: head=1. Did you mean heads=\?"):
        edits.ablate("*", head=1)  # type: ignore[call-arg]
    with pytest.raises(DtypeError, match=r"patch: unknown argument. Received: queries=-1. Its arguments: .*positions"):
        edits.patch("*", headwise.Seen([]), "output", queries=-1)  # type: ignore[call-arg]


def test_calls_are_not_kept_when_the_model_has_returned() -> None:
    model = llama("eager")
    with torch.no_grad(), headwise.edit(model, EDIT) as changed:
        model(TOKENS)
        recogniser = recogniser_here()
        assert changed.sites
        assert not recogniser.rewriting


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_heads_that_are_not_ablated_keep_every_bit(how: str) -> None:
    model, seen = llama(how), list[Tensor]()
    hook = model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        model(TOKENS)
        with headwise.edit(model, edits.ablate("layers.0", heads=1)):
            model(TOKENS)
    hook.remove()
    plain, ablated = (x.unflatten(-1, (4, 8)) for x in seen)
    assert not bool(ablated[:, :, 1].any())
    assert torch.equal(ablated[:, :, [0, 2, 3]], plain[:, :, [0, 2, 3]])


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_edits_inside_one_another(how: str) -> None:
    model, both = llama(how), [EDIT, edits.ablate("*", heads=1)]
    with torch.no_grad(), headwise.edit(model, both):
        expected = model(TOKENS).logits
    for first, second in (both, both[::-1]):
        with torch.no_grad(), headwise.edit(model, first), headwise.edit(model, second):
            torch.testing.assert_close(model(TOKENS).logits, expected)
    with (
        pytest.raises(EditRefused, match="topk inside of another edit"),
        headwise.edit(model, EDIT),
        headwise.edit(model, edits.topk("*", 2)),
    ):
        model(TOKENS)


@pytest.mark.parametrize("edit", [EDIT, edits.head_mask("*", 0.5)], ids=["block", "head_mask"])
def test_one_softmax_with_two_values(edit: Any) -> None:
    class Twice(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            weights = (q @ q.mT).softmax(-1)
            return weights @ q + weights @ q.flip(-1)

    model, q = Twice(), torch.randn(1, 2, 4, 8)
    with torch.no_grad(), headwise.edit(model, edit):
        found = model(q)
    scores = q @ q.mT
    if edit is EDIT:
        scores[:, :, 1:, 0] = -torch.inf
    weights = scores.softmax(-1) * (1.0 if edit is EDIT else 0.5)
    torch.testing.assert_close(found, weights @ q + weights @ q.flip(-1))


def test_queries_left_without_keys_in_a_causal_model() -> None:
    model = llama("sdpa")
    with torch.no_grad(), headwise.edit(model, edits.block("layers.0", keys=0)) as changed:
        model(TOKENS)
    assert changed.emptied == 2  # the first of each example, which has no other key; of all heads alike


def test_padding_on_the_right_is_not_edited_and_not_counted() -> None:
    torch.manual_seed(0)
    bert = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4
        )
    ).eval()
    real = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    with torch.no_grad(), headwise.edit(bert, edits.block("*", queries=0, keys=-1)):
        found = bert(TOKENS, attention_mask=real).last_hidden_state
    with (
        torch.no_grad(),
        headwise.edit(
            bert, [edits.block("*", queries=0, keys=2, examples=0), edits.block("*", queries=0, keys=4, examples=1)]
        ),
    ):
        expected = bert(TOKENS, attention_mask=real).last_hidden_state
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("inside", ["edit", "watch"])
@pytest.mark.parametrize("edit", [edits.topk("*", 2), edits.steer("*", keys=0, to=0.5)], ids=["topk", "share"])
def test_records_show_edited_weights(how: str, inside: str, edit: Edit) -> None:
    model = llama(how)
    contexts = [lambda: headwise.edit(model, edit), lambda: headwise.watch(model)]
    first, second = contexts if inside == "watch" else contexts[::-1]
    with torch.no_grad(), first() as one, second() as two:
        model(TOKENS)
        seen = two if inside == "watch" else one
        assert isinstance(seen, headwise.Seen)
    assert len(seen) == 2
    used = seen[0].used_weights()[0, :, 3]
    if edit.name == "topk":
        assert (used > 0).sum(-1).tolist() == [2, 2, 2, 2]
    else:
        torch.testing.assert_close(used[:, 0], torch.full((4,), 0.5))
    with torch.no_grad(), headwise.edit(model, edit), headwise.watch(model, values=True) as seen:
        model(TOKENS)
    assert not len(seen)
    assert "an edit changed its weights, which is not supported with values=True" in str(seen.coverage())


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_needs_backward_inside(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.recompute = nn.TransformerEncoderLayer(8, 2, batch_first=True, dropout=0.0), False

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = checkpoint(self.layer, x, use_reentrant=reentrant) if self.recompute else self.layer(x)
            return found

    torch.manual_seed(0)
    model, x = Checkpointed(), torch.randn(1, 4, 8, requires_grad=True)

    def gradients() -> list[Tensor | None]:
        model.zero_grad()
        with headwise.edit(model, EDIT):
            model(x).square().sum().backward()
        return [p.grad for p in model.parameters()]

    expected = gradients()
    model.recompute = True
    torch.testing.assert_close(gradients(), expected)
    with pytest.raises(EditRefused, match=r"Call backward\(\) inside of the edit"), headwise.edit(model, EDIT):
        model(x)


def test_rows_that_are_examples_and_heads() -> None:
    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q = x.unflatten(-1, (2, 4)).transpose(1, 2).flatten(0, 1)  # [B·H, N, D]
            return (q @ q.mT).softmax(-1) @ q

    model, x = Rows(), torch.randn(2, 3, 8)
    for edit in (edits.ablate("*", heads=0), edits.ablate("*", examples=1)):
        with (
            pytest.raises(EditRefused, match=r"its 4 rows may be both, and the module does not say how many heads"),
            headwise.edit(model, edit),
        ):
            model(x)
    with headwise.edit(model, edits.ablate("*")):
        assert not bool(model(x).any())


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
@pytest.mark.parametrize("where", [0, [0, 1], "*"])
@pytest.mark.parametrize("edit", [edits.ablate, lambda where, **more: edits.temperature(where, 2.0, **more)])
def test_gradient_checkpointing_knows_layers_by_number(where: Any, edit: Any) -> None:
    found = []
    for checkpointed in (False, True):
        model = llama("sdpa").train()
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        with headwise.edit(model, edit(where, heads=1)):
            model(TOKENS, labels=TOKENS).loss.backward()
        found.append([p.grad for p in model.parameters()])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


def test_a_function_may_write_to_what_it_is_given() -> None:
    model = llama("sdpa")

    def write(x: Tensor, *_: Any) -> Tensor:
        x[:] = 0.0
        return x

    with torch.no_grad(), headwise.edit(model, edits.ablate("*", heads=1, examples=0)):
        expected = model(TOKENS).logits
    for edit in (edits.weights, edits.output):
        with torch.no_grad(), headwise.edit(model, edit("*", write, heads=1, examples=0)):
            torch.testing.assert_close(model(TOKENS).logits, expected)


class Twice(nn.Module):
    """One layer that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = headwise.nn.MultiHeadAttention(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x + self.attention(x))


def test_each_run_of_a_layer_is_patched_by_its_own_record() -> None:
    model, x, other = Twice(), torch.randn(1, 4, 8), torch.randn(1, 4, 8)
    names: list[str] = []

    def keep(out: Tensor, at: Where) -> Tensor:
        names.append(at.name)
        return out

    for _ in range(2):
        with torch.no_grad(), headwise.watch(model, values=True) as seen, headwise.edit(model, edits.output("*", keep)):
            expected = model(other)
    assert names == ["attention", "attention (run 2)"] * 2
    assert len(seen) == 2
    with torch.no_grad(), headwise.edit(model, edits.patch("*", seen, "output")):
        found = model(x)
    torch.testing.assert_close(found - x, expected - other)
    with (
        torch.no_grad(),
        pytest.raises(RecordError, match=r"each run of attention, .* at least 2\. Received: a source with 1"),
        headwise.edit(model, edits.patch("*", seen.call(0), "output")),
    ):
        model(x)
