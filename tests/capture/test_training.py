"""The monitor: its numbers against dense ones, which steps and passes it counts, where it logs, and what it leaves."""

from __future__ import annotations

import copy
import math
import pickle
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

import headwise
from headwise.capture.head_means import gradient_norm
from headwise.capture.training import Monitor, monitor
from headwise.errors import ArgumentError, DtypeError

HEADS, WIDTH = 2, 4


class Attention(nn.Module):
    """Self-attention that remembers its q and k [B, H, T, D]. `bias` [H, T, T] is added to the scores."""

    def __init__(self, *, dropout: float = 0.0, bias: Tensor | None = None, causal: bool = True) -> None:
        super().__init__()
        self.qkv = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.dropout, self.bias, self.causal = dropout, bias, causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        self.q, self.k = q.detach(), k.detach()
        dropout = self.dropout if self.training else 0.0
        y = scaled_dot_product_attention(q, k, v, attn_mask=self.bias, dropout_p=dropout, is_causal=self.causal)
        return x + y.transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(**options) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


@pytest.fixture
def model() -> Model:
    return Model()


def batch(count: int = 3, length: int = 5) -> Tensor:
    return torch.randn(count, length, HEADS * WIDTH)


def train(watching: Monitor, model: nn.Module, x: Tensor | None = None) -> dict[str, float]:
    """One step of training."""
    model.zero_grad()
    model(batch() if x is None else x).backward()
    return watching.step()


def dense(layer: Attention, bias: Tensor | None = None) -> dict[str, list[float]]:
    """The means of a causal layer, from its whole matrix in float64."""
    q, k = layer.q.double(), layer.k.double()
    length = q.shape[2]
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    s = (q @ k.mT / math.sqrt(WIDTH)).masked_fill(~allowed, -math.inf)
    weights = s.softmax(-1)
    entropy = -torch.special.xlogy(weights, weights).sum(-1)  # [B, H, T]
    choices = allowed.sum(-1).double()
    return {
        "entropy": entropy.mean((0, 2)).tolist(),
        "entropy_normalised": (entropy / choices.log())[..., 1:].mean((0, 2)).tolist(),
        "first_visible": weights[..., 0].mean((0, 2)).tolist(),
    }


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def heads(metrics: dict[str, float], name: str, layer: str = "layers.0") -> list[float]:
    return [metrics[f"attention/{layer}/{name}/head_{head}"] for head in range(HEADS)]


# --- The numbers ------------------------------------------------------------------------------------------------------


def test_a_head_that_averages_everything_by_hand() -> None:
    attention = Attention()
    nn.init.zeros_(attention.qkv.weight)
    with monitor(nn.Sequential(attention)) as watching:
        watching._model(batch(1, 4)).sum().backward()
        metrics = watching.step()
        assert heads(metrics, "entropy", "0") == pytest.approx([math.log(1 * 2 * 3 * 4) / 4] * 2)
        assert heads(metrics, "entropy_normalised", "0") == pytest.approx([1.0] * 2)  # of the three that have a choice
        assert heads(metrics, "first_visible", "0") == pytest.approx([(1 + 1 / 2 + 1 / 3 + 1 / 4) / 4] * 2)
        assert watching.dead == {"0": {0: "uniform", 1: "uniform"}}
        assert metrics["attention/dead_heads"] == metrics["attention/0/dead_heads"] == 2


def test_a_head_that_looks_at_the_first_token_alone_is_dormant() -> None:
    bias = torch.zeros(HEADS, 6, 6)
    bias[1, :, 0] = 50.0
    model = Model(bias=bias, causal=False)
    with monitor(model) as watching:
        metrics = train(watching, model, batch(2, 6))
    assert watching.dead == {"layers.0": {1: "dormant"}, "layers.1": {1: "dormant"}}
    assert heads(metrics, "first_visible")[1] == pytest.approx(1.0)
    assert heads(metrics, "entropy")[1] == pytest.approx(0.0, abs=1e-6)
    assert metrics["attention/layers.1/dead_heads"] == 1
    assert metrics["attention/dead_heads"] == 2


def test_where_a_head_counts_as_dead_is_a_choice(model: Model) -> None:
    with monitor(model, uniform=0.1) as watching:
        assert train(watching, model)["attention/dead_heads"] == 4
    with monitor(model, dormant=0.1) as watching:
        train(watching, model)
    assert watching.dead["layers.0"] == {0: "dormant", 1: "dormant"}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_numbers_equal_dense_ones(dropout: float) -> None:
    model = Model(dropout=dropout)  # the weights are those before dropout
    with monitor(model) as watching:
        metrics = train(watching, model)
    for i, layer in enumerate(model.layers):
        assert isinstance(layer, Attention)
        for name, expected in dense(layer).items():
            assert heads(metrics, name, f"layers.{i}") == pytest.approx(expected, abs=1e-6)
    assert [name for name in metrics if "layers" not in name] == ["attention/gradient_norm", "attention/dead_heads"]
    assert len(metrics) == 2 + 2 * (1 + 3 * HEADS)


def test_queries_that_attend_to_nothing_do_not_count() -> None:
    class Padded(nn.Module):
        def forward(self, q: Tensor, lengths: list[int]) -> Tensor:
            keep = torch.arange(q.shape[2]) < torch.tensor(lengths)[:, None]
            return headwise.attention(q, q, q, mask=headwise.masks.padding(keep)).sum()

    model = Padded()
    q = torch.zeros(2, 1, 4, 3, requires_grad=True)
    with monitor(model) as watching:
        model(q, [0, 3]).backward()  # all queries of the first example see nothing
        with pytest.warns(UserWarning, match="there are no gradients"):
            metrics = watching.step()
    assert metrics["attention/Padded/entropy/head_0"] == pytest.approx(math.log(3))
    assert metrics["attention/Padded/first_visible/head_0"] == pytest.approx(1 / 3)
    assert watching.dead == {"Padded": {0: "uniform"}}


def test_a_learned_sink_is_a_choice_and_makes_a_head_dormant() -> None:
    class Sinks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sinks = nn.Parameter(torch.tensor([0.0, 20.0]))

        def forward(self, q: Tensor) -> Tensor:
            return headwise.attention(q, q, q, sinks=self.sinks).sum()

    model = Sinks()
    with monitor(model) as watching:
        metrics = train(watching, model, torch.zeros(1, 2, 3, 4))
    assert metrics["attention/Sinks/learned_sink/head_0"] == pytest.approx(1 / 4)
    assert metrics["attention/Sinks/entropy/head_0"] == pytest.approx(math.log(4))
    assert metrics["attention/Sinks/entropy_normalised/head_0"] == pytest.approx(1.0)
    assert watching.dead == {"Sinks": {0: "uniform", 1: "dormant"}}


@pytest.mark.parametrize("kind", ["all", "half", "sparse", "part"])
def test_the_gradient_norm_is_torchs(kind: str) -> None:
    model = nn.Sequential(nn.Embedding(7, 5, sparse=kind == "sparse"), nn.Linear(5, 3))
    model = model.to(torch.bfloat16) if kind == "half" else model
    model[1].bias.requires_grad_(kind != "part")
    model(torch.tensor([1, 1, 3])).float().pow(2).sum().backward()
    gradients = [p.grad.to_dense().double() for p in model.parameters() if p.grad is not None]
    expected = float(torch.nn.utils.get_total_norm(gradients))
    assert gradient_norm(model) == pytest.approx(expected, rel=1e-5)


# --- Which steps, and which passes ------------------------------------------------------------------------------------


def test_logs_every_nth_step_and_leaves_the_others_alone(model: Model) -> None:
    logged: list[int] = []
    with monitor(model, lambda metrics, step: logged.append(step), every=3) as watching:
        attached = []
        for step in range(7):
            attached.append(hooks(model) > 0)
            assert bool(train(watching, model)) is (step % 3 == 0)
    assert attached == [True, False, False, True, False, False, True]
    assert logged == [0, 3, 6]


def test_what_a_model_learns_is_the_same(model: Model) -> None:
    other = copy.deepcopy(model)
    x = batch()
    with monitor(model) as watching:
        train(watching, model, x)
    other(x).backward()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_all_passes_of_an_accumulated_gradient_count(model: Model) -> None:
    x = batch(4)
    with monitor(model, every=1) as watching:
        whole = train(watching, model, x)
        model.zero_grad()
        for part in x.split(2):
            (model(part) / 2).backward()
        parts = watching.step()
        assert watching.coverage().sites[0].calls == 2
    assert parts == pytest.approx(whole, rel=1e-5)


def test_evaluation_in_between_does_not_count(model: Model) -> None:
    x = batch()
    with monitor(model, every=1) as watching:
        alone = train(watching, model, x)
        model.zero_grad()
        model.eval()
        model(batch(1, 9))
        model.train()
        model(x).backward()
        with torch.no_grad():
            model(batch(1, 9))
        assert watching.step() == alone


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_pass_counts_once(model: Model, reentrant: bool) -> None:
    x = batch().requires_grad_()
    with monitor(model, every=1) as watching:
        alone = train(watching, model, x)
        model.zero_grad()

        class Checkpointed(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return checkpoint(model, x, use_reentrant=reentrant)

        outer = Checkpointed()
        outer.add_module("inner", model)
    with monitor(outer, every=1) as watching:
        found = train(watching, outer, x)
    assert [site.calls for site in watching.coverage()] == [1, 1]
    assert {name.replace("inner.", ""): value for name, value in found.items()} == pytest.approx(alone, rel=1e-6)


def test_parts_that_are_called_by_themselves_are_seen() -> None:
    class Parts(nn.Module):  # as a LightningModule's training_step does
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = Model(), nn.Linear(1, 1)

    model = Parts()
    with monitor(model) as watching:
        model.head(model.body(batch())[None]).sum().backward()
        metrics = watching.step()
    assert "attention/body.layers.1/entropy/head_1" in metrics
    assert watching.coverage().notes == ()


def test_compiled_models_run_eagerly_in_the_steps_that_are_logged(model: Model) -> None:
    compiled = torch.compile(model, backend="eager")
    with monitor(model, every=2) as watching:
        assert [len(train(watching, compiled)) > 2 for _ in range(4)] == [True, False, True, False]


# --- What it leaves ---------------------------------------------------------------------------------------------------


@pytest.fixture
def untouched(model: Model) -> Iterator[None]:
    """Afterwards nothing is left in the model, nor in torch."""
    before = [{**module.__dict__} for module in model.modules()]
    yield
    assert hooks(model) == 0
    assert _get_current_function_mode_stack() == []
    for module, attributes in zip(model.modules(), before, strict=True):
        assert attributes.keys() == {name for name in module.__dict__ if name not in ("q", "k")}


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["forward", "between"])
def test_an_exception_restores_the_model(
    model: Model, error: type[BaseException], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Tensor:
        raise error

    def loop() -> None:
        with monitor(model), monkeypatch.context() as patch:
            if where == "between":
                fail()
            patch.setattr(model.layers[1], "forward", fail)
            model(batch())

    with pytest.raises(error):
        loop()


@pytest.mark.usefixtures("untouched")
def test_a_pass_that_failed_does_not_count(model: Model) -> None:
    x = batch()
    with monitor(model, every=1) as watching:
        alone = train(watching, model, x)
        with pytest.raises(RuntimeError):
            model(torch.randn(1, 2, 3))
        try:
            raise ValueError  # handled, while the next pass runs
        except ValueError:
            assert train(watching, model, x) == alone


@pytest.mark.usefixtures("untouched")
def test_a_copy_of_the_model_is_not_watched(model: Model) -> None:
    with monitor(model, print) as watching:
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        for each in copies:
            each(batch()).backward()
        assert not watching._sums


@pytest.mark.usefixtures("untouched")
def test_stopping_twice_is_fine_and_it_can_start_again(model: Model) -> None:
    watching = monitor(model)
    watching.stop()
    watching.start()
    with pytest.raises(ArgumentError, match="already running"):
        watching.start()
    train(watching, model)
    watching.stop()
    watching.stop()
    with pytest.raises(ArgumentError, match="outside the context"):
        watching.step()


# --- What it tells ----------------------------------------------------------------------------------------------------


def warnings_of(watching: Monitor) -> list[str]:
    """What a step warns of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        watching.step()
    assert all(each.filename == __file__ for each in told)
    return [str(each.message) for each in told]


def test_says_once_that_nothing_was_seen() -> None:
    model = nn.Linear(2, 2)
    logged: list[list[str]] = []
    with monitor(model, lambda metrics, step: logged.append(list(metrics)), every=1) as watching:
        told = []
        for _ in range(3):
            model(torch.randn(1, 2)).sum().backward()
            told += warnings_of(watching)
    (message,) = told
    assert "step 0: no head was logged: no attention was seen: looked for" in message
    assert logged == [["attention/gradient_norm"]] * 3


def test_says_that_no_pass_and_no_gradient_came_before_the_step(model: Model) -> None:
    logged: list[Any] = []
    with monitor(model, lambda *given: logged.append(given)) as watching:
        gradients, passes = warnings_of(watching)
    assert "no gradients. Call step() after backward()" in gradients
    assert "no forward pass in train mode" in passes
    assert logged == []


def test_says_what_was_missed_and_what_cannot_be_shown() -> None:
    class LinearAttention(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return q.softmax(-1) @ (q.softmax(-2).mT @ q)

    class Overwritten(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            q = q * 1.0
            y = scaled_dot_product_attention(q, q, q)
            q.mul_(2.0)
            return y

    model = nn.Sequential(Overwritten(), LinearAttention())
    with monitor(model) as watching:
        model(torch.randn(1, 1, 3, 4))
        messages = warnings_of(watching)
    assert any("1 was missed: its scores come from no product" in message for message in messages)
    assert any("0 was refused: q or k, or a tensor" in message for message in messages)
    assert {site.name for site in watching.coverage().missed} == {"1"}


class Writer:
    """Of SummaryWriter's kind."""

    def __init__(self) -> None:
        self.scalars: dict[tuple[str, int], float] = {}
        self.histograms: dict[tuple[str, int], list[float]] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars[tag, step] = value

    def add_histogram(self, tag: str, values: Tensor, step: int) -> None:
        self.histograms[tag, step] = values.tolist()


def test_a_summary_writer_gets_scalars_and_histograms(model: Model) -> None:
    writer = Writer()
    with monitor(model, writer, every=2) as watching:
        metrics = [train(watching, model) for _ in range(3)]
    expected = {(name, step): value for step in (0, 2) for name, value in metrics[step].items()}
    assert writer.scalars == expected
    assert writer.histograms["attention/layers.1/first_visible", 2] == heads(metrics[2], "first_visible", "layers.1")
    assert len(writer.histograms) == 2 * 2 * 3


class LightningLogger:
    """Of the kind that Lightning's loggers are."""

    def __init__(self) -> None:
        self.logged: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged.append((step, metrics))


def test_a_logger_of_lightnings_kind(model: Model) -> None:
    logger = LightningLogger()
    with monitor(model, logger) as watching:
        metrics = train(watching, model)
    assert logger.logged == [(0, metrics)]


# --- Lightning --------------------------------------------------------------------------------------------------------


class Callback:
    """What Lightning requires its callbacks to be."""


class Trainer:
    """Calls a callback in the order that Lightning does."""

    def __init__(self, callback: Any, step: int = 0) -> None:
        self.callback, self.global_step, self.loggers = callback, step, [LightningLogger()]

    def fit(self, model: nn.Module, steps: int, fails: bool = False) -> None:
        self.callback.on_train_start(self, model)
        try:
            for _ in range(steps):
                model.zero_grad()
                model(batch()).backward()
                self.callback.on_before_optimizer_step(self, model, None)
                self.global_step += 1
            if fails:
                raise ValueError("the loss is not a number")
        except ValueError as error:
            self.callback.on_exception(self, model, error)
            raise
        self.callback.on_train_end(self, model)


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def _lightning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two packages is there."""
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    module = types.ModuleType(request.param)
    module.Callback = Callback  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, request.param, module)


@pytest.mark.usefixtures("_lightning", "untouched")
def test_the_lightning_callback_logs_to_the_trainers_loggers(model: Model) -> None:
    callback = monitor(model, every=4).lightning()
    assert isinstance(callback, Callback)
    trainer = Trainer(callback, step=3)
    trainer.fit(model, 6)
    assert [step for step, _ in trainer.loggers[0].logged] == [4, 8]
    assert "attention/layers.0/entropy/head_0" in trainer.loggers[0].logged[0][1]
    trainer.fit(model, 4)
    assert [step for step, _ in trainer.loggers[0].logged] == [4, 8, 12]


@pytest.mark.usefixtures("_lightning", "untouched")
def test_the_lightning_callback_keeps_a_log_of_its_own_and_stops_when_training_fails(model: Model) -> None:
    logged: list[int] = []
    trainer = Trainer(monitor(model, lambda metrics, step: logged.append(step), every=1).lightning())
    with pytest.raises(ValueError, match="not a number"):
        trainer.fit(model, 2, fails=True)
    assert logged == [0, 1]
    assert trainer.loggers[0].logged == []


def test_without_lightning_the_callback_says_so(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="pip install lightning"):
        monitor(model).lightning()


# --- Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"every": 0}, ArgumentError, "every must be an int of at least 1. Received: every=0"),
        ({"every": True}, ArgumentError, "Received: every=True"),
        ({"first_step": -1}, ArgumentError, "first_step must be an int of at least 0"),
        ({"uniform": 0.0}, ArgumentError, "uniform must be above 0"),
        ({"dormant": 1.5}, ArgumentError, "dormant must be above 0 and at most 1. Received: dormant=1.5"),
        ({"log": 3}, DtypeError, "log must be a SummaryWriter.* Received: int"),
        ({"model": "bert"}, DtypeError, "model must be a torch.nn.Module. Received: str"),
    ],
)
def test_bad_arguments_are_named(model: Model, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as raised:
        monitor(**{"model": model, **options})
    assert len(str(raised.value).splitlines()) == 1
