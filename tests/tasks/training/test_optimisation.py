"""The learning rate by hand, and which parameters decay."""

from __future__ import annotations

import pytest
from torch import nn

from headwise.tasks.options.train import TrainOptions
from headwise.tasks.training.optimisation import configure, factor, groups


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ("cosine", [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447, 0.0]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("inverse_sqrt", [0.5, 1.0, 0.816497, 0.707107, 0.632456, 0.57735, 0.534522]),  # √(2 / (step + 1))
    ],
)
def test_two_steps_up_and_four_down(schedule: str, expected: list[float]) -> None:
    at = factor(schedule, 2, 6)
    assert [at(step) for step in range(7)] == pytest.approx(expected, abs=1e-6)


def test_without_warmup_the_first_step_has_the_highest_rate() -> None:
    assert factor("linear", 0, 4)(0) == 1.0


def test_biases_norms_and_embeddings_do_not_decay() -> None:
    module = nn.ModuleDict(
        {"embedding": nn.Embedding(3, 2), "linear": nn.Linear(2, 3), "norm": nn.LayerNorm(2), "frozen": nn.Linear(2, 2)}
    )
    module["frozen"].requires_grad_(False)
    decaying, others = groups(module, 0.1)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    assert [names[id(each)] for each in decaying["params"]] == ["linear.weight"]
    assert sorted(names[id(each)] for each in others["params"]) == [
        "embedding.weight",
        "linear.bias",
        "norm.bias",
        "norm.weight",
    ]
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)


def test_an_output_that_is_tied_to_the_embedding_is_one_parameter_that_does_not_decay() -> None:
    module = nn.ModuleDict({"embedding": nn.Embedding(3, 2), "output": nn.Linear(2, 3, bias=False)})
    module["output"].weight = module["embedding"].weight
    [others] = groups(module, 0.1)
    assert others["weight_decay"] == 0.0
    assert len(others["params"]) == 1


def test_parts_may_have_learning_rates_of_their_own() -> None:
    module = nn.ModuleDict({"old": nn.Linear(2, 2), "new": nn.Linear(2, 2, bias=False)})
    found = configure(module, TrainOptions(lr=1.0, warmup=0.5, weight_decay=0.1), 4, {"old.": 0.1})
    rates = {id(each): group["lr"] for group in found["optimizer"].param_groups for each in group["params"]}
    assert {name: rates[id(each)] for name, each in module.named_parameters()} == pytest.approx(
        {"new.weight": 0.5, "old.weight": 0.05, "old.bias": 0.05}
    )
    assert found["optimizer"].param_groups[0]["lr"] == 0.5  # the first is what a learning curve shows


def test_the_warmup_is_a_share_of_all_steps() -> None:
    found = configure(nn.Linear(2, 2), TrainOptions(lr=1.0, warmup=0.25), steps=8)
    assert found["optimizer"].param_groups[0]["lr"] == 0.5  # the first of two steps up
    assert found["optimizer"].defaults["fused"] is True
