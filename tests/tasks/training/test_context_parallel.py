"""`--context-parallel`: processes that share each sequence learn what one process learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.errors import ArgumentError
from headwise.tasks.language import Language
from headwise.tasks.options.language import LanguageOptions
from headwise.tasks.training import strategies
from tests.tasks.problems import twice

from .test_distributed import assert_same, losses, weights

# One long document and short ones: some batches are of two tokens, fewer than there are processes and one more.
TEXTS = [" ".join(twice(20)), "a", *twice(6, seed=1), "dog"]
HELD_OUT = [" ".join(twice(9, seed=2)), "cat", "a dog"]
SAME: dict[str, Any] = {
    **{"objective": "causal", "dim": 16, "layers": 2, "heads": 2, "vocab_size": 300, "block": 70, "batch_tokens": 80},
    **{"dropout": 0.0, "epochs": 2, "monitor_every": 0, "accelerator": "cpu", "validation": None, "lr": 2e-3},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ "one" is the run of one process; "stopped" was stopped after its first step, in two processes."""
    folder = tmp_path_factory.mktemp("runs")
    given = {**SAME, "validation": write(folder / "held_out.txt", HELD_OUT)}
    corpus = write(folder / "corpus.txt", TEXTS)
    Language.fit(corpus, out=folder / "one", **given)
    Language.fit(corpus, out=folder / "two", context_parallel=2, **given)
    Language.fit(corpus, out=folder / "stopped", context_parallel=2, time_limit=1e-9, **given)
    return folder


def write(path: Path, texts: list[str]) -> str:
    path.write_text("\n\n".join(texts))
    return str(path)


@pytest.mark.slow
def test_two_processes_that_share_each_sequence_learn_what_one_learns(runs: Path) -> None:
    assert_same(weights(runs / "one"), weights(runs / "two"))
    assert len(losses(runs / "two")) == 2
    torch.testing.assert_close(losses(runs / "two"), losses(runs / "one"), rtol=1e-5, atol=1e-5)


def test_a_run_that_was_shared_goes_on_in_one_process(runs: Path) -> None:
    Language.fit(str(runs / "corpus.txt"), out=runs / "stopped", resume=True, context_parallel=1, time_limit=None)
    assert_same(weights(runs / "one"), weights(runs / "stopped"))


@pytest.mark.slow
def test_four_processes_two_of_which_share_a_sequence(runs: Path) -> None:
    """Weights and moments are in shares of four, examples go to two pairs."""
    given = {**SAME, "validation": str(runs / "held_out.txt"), "context_parallel": 2, "devices": 4, "strategy": "fsdp"}
    Language.fit(str(runs / "corpus.txt"), out=runs / "four", **given)
    assert_same(weights(runs / "one"), weights(runs / "four"))
    torch.testing.assert_close(losses(runs / "four"), losses(runs / "one"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"context_parallel": 2, "objective": "masked"}, "context_parallel: expected objective=causal. Received: obj"),
        ({"context_parallel": 2, "compile": True}, "compile: expected False with context_parallel"),
        ({"context_parallel": 0}, "context_parallel: expected at least 1"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        LanguageOptions(**{"objective": "causal", **options})


def test_sequences_need_as_many_processes_as_share_them() -> None:
    options = LanguageOptions(objective="causal", context_parallel=2, devices=3, accelerator="cpu")
    with pytest.raises(ArgumentError, match=r"context_parallel: expected a divisor of .* processes, 3. Received: .*=2"):
        strategies.check(options)
    assert strategies.devices(LanguageOptions(objective="causal", context_parallel=4)) == 4
