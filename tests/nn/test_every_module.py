"""What every module promises: it compiles whole, exports with an open length, runs under autocast, saves and loads."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn

from headwise import errors, masks
from headwise.nn import Cache, FeedForward, MultiHeadAttention
from tests.nn.cases import CASES, DIM, Case

PLAIN = ("multi-head", "multi-head, cross", "multi-head, shared")


class Called(nn.Module):
    """A module with its mask, as one function of tensors."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case, self.module = case, case.build().eval()

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.module(x, other if self.case.other else None, mask=self.case.mask)


@pytest.fixture(params=CASES, ids=list(CASES))
def called(request: pytest.FixtureRequest) -> Called:
    torch.manual_seed(0)
    torch._dynamo.reset()
    return Called(CASES[request.param])


def inputs(length: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(2, length, DIM), torch.randn(2, length + 3, DIM)


# The encoder and the decoder are made of the layers and of plain multi-head attention.
COMPILED = ("multi-head, everything", "latent, absorb", "latents, read out")


quick = pytest.mark.parametrize(
    "called",
    [pytest.param(each, marks=() if each in (*COMPILED, "decoder") else pytest.mark.slow) for each in CASES],
    indirect=True,
)


@quick
def test_compiles_in_one_piece_and_trains_so(called: Called) -> None:
    x, other = inputs()
    compiled = torch.compile(called, fullgraph=True, backend="aot_eager")
    out, expected = compiled(x, other), called(x, other)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    parameters = [p for p in called.parameters() if p.requires_grad]
    grads = torch.autograd.grad(out.square().sum(), parameters, allow_unused=True)
    for grad, true_grad in zip(
        grads, torch.autograd.grad(expected.square().sum(), parameters, allow_unused=True), strict=True
    ):
        if true_grad is not None:
            torch.testing.assert_close(grad, true_grad, rtol=1e-4, atol=1e-4)


@quick
def test_exports_with_an_open_length(called: Called) -> None:
    length, more = torch.export.Dim("length", min=2, max=64), torch.export.Dim("more", min=2, max=64)
    x, other = inputs()
    exported = torch.export.export(
        called, (x, other), dynamic_shapes=({1: length}, {1: more} if called.case.other else None)
    )
    longer = inputs(11)
    given = (longer[0], longer[1] if called.case.other else other)
    torch.testing.assert_close(exported.module()(*given), called(*given), rtol=1e-5, atol=1e-5)


def test_runs_and_trains_under_autocast(called: Called) -> None:
    x, other = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        out = called.train()(x, other)
    out.float().square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in called.parameters())
    with torch.no_grad():
        exact = called(x, other)
    torch.testing.assert_close(out.float(), exact, rtol=0.1, atol=0.1 * float(exact.abs().max()))


def test_is_saved_loaded_copied_and_printed(called: Called) -> None:
    x, other = inputs()
    expected = called(x, other)
    file = io.BytesIO()
    torch.save(called.state_dict(), file)
    file.seek(0)
    fresh = Called(called.case)
    assert not torch.equal(fresh(x, other), expected)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(fresh(x, other), expected)
    torch.testing.assert_close(copy.deepcopy(called)(x, other), expected)
    assert str(DIM) in repr(called.module)


def test_reset_parameters_starts_anew(called: Called) -> None:
    before = {name: p.clone() for name, p in called.module.named_parameters()}
    called.module.reset_parameters()  # type: ignore[operator]
    changed = {name for name, p in called.module.named_parameters() if not torch.equal(p, before[name])}
    matrices = {name for name, p in before.items() if p.ndim > 1}
    assert matrices <= changed
    assert all(p.isfinite().all() for p in called.module.parameters())


# The encoder is made of the layers that are left out, and the decoder of those that are not.
LEFT_OUT = (*PLAIN, "encoder layer", "decoder")
QUICK = ("latent, absorb", "multi-head, everything")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name, case in sorted(CASES.items())
        if case.decodes and name not in LEFT_OUT
    ],
)
def test_a_compiled_step_on_a_cache_gives_what_the_whole_does(name: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    case = CASES[name]
    module = case.build().eval()
    x, other = inputs()
    more = other if case.other else None

    def run(token: Tensor, cache: Cache) -> Tensor:
        return module(token, more, mask=case.mask, cache=cache)

    with torch.no_grad():
        expected = module(x, more, mask=case.mask)
        step, cache = torch.compile(run, fullgraph=True, backend="aot_eager"), Cache(capacity=8)
        found = torch.cat([step(x[:, i : i + 1], cache) for i in range(x.shape[1])], dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert cache.length == x.shape[1]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.decodes and name != "multi-head, cross"])
def test_a_mask_that_does_not_fit_leaves_the_cache_as_it_was(name: str) -> None:
    case, cache = CASES[name], Cache()
    module = case.build().eval()
    x, other = inputs()
    more = other if case.other else None
    module(x, more, mask=case.mask, cache=cache)
    for wrong in (torch.ones(6, 6, dtype=torch.bool), masks.padding(torch.ones(2, 6, dtype=torch.bool))):
        with pytest.raises(errors.MaskError):
            module(x, more, mask=wrong, cache=cache)
    with pytest.raises(errors.DtypeError, match=r"mask must be a headwise mask, .* Received: str"):
        module(x, more, mask="causal", cache=cache)
    assert cache.length == cache.size == 6


def test_compiled_code_makes_no_records_and_says_so() -> None:
    module = MultiHeadAttention(DIM, 4)
    compiled = torch.compile(lambda x: module(x, record=True), backend="aot_eager", fullgraph=True)
    with pytest.raises((errors.RecordError, torch._dynamo.exc.Unsupported), match=r"makes no records|\(RecordError\)"):
        compiled(inputs()[0])


def test_a_feed_forward_layer_compiles_and_exports() -> None:
    layer = FeedForward(DIM, activation="swiglu").eval()
    x = torch.randn(2, 5, DIM)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x))
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))
