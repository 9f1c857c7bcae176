"""`headwise bench`: its table, its JSON, and what it says on a busy machine."""

from __future__ import annotations

import json
import math

import pytest

from headwise.call import AttentionCall
from headwise.kernels import measure, speeds
from headwise.kernels.measure import Contest

from .conftest import Run, refused

TINY = ("--length", "32", "--heads", "4", "--kv-heads", "2", "--head-dim", "8", "--rounds", "2")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.setattr(measure, "PRODUCT", 32)
    monkeypatch.setattr(measure, "STEADY", math.inf)  # on any machine


def test_a_table_of_the_kernels_and_the_choice(run: Run) -> None:
    result = run("bench", *TINY, "--mask", "window:3,0", "--length", "48")
    assert (result.code, result.err) == (0, "")
    assert "32 × 32, 4 heads of 8, float32, window:3,0" in result.out
    assert "48 × 48, 4 heads of 8, float32, window:3,0" in result.out
    (chosen, _) = (line for line in result.out.splitlines() if "the plan's choice" in line)
    assert chosen.split()[0] == "sdpa"  # what is small is left to torch
    assert chosen.rstrip().endswith("%")
    assert "forward; 2 rounds; a matrix product: " in result.out
    assert "decode refuses: it is for one query a head (the call has Q = 32)" in result.out

    assert "1 × 32, 4 heads" in (told := run("bench", *TINY, "--queries", "1")).out
    assert "decode" in told.out


@pytest.mark.parametrize(
    ("products", "last"), [([2.0, 100.0], "measuring again"), ([2.0, 4.0, 5.0, 100.0], "run it again")]
)
def test_a_busy_machine_is_told_and_measured_again(
    run: Run, products: list[float], last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two calls; `products` are the slow rounds of the matrix product in each attempt, where a quick one is 100."""
    made = iter([*products, 100.0])

    def contest(call: AttentionCall, rounds: int) -> Contest:
        assert rounds == 3
        slow = next(made)
        return Contest("native", {"native": [1.0] * 3}, [100.0, slow, slow], 2.0, {})

    monkeypatch.setattr(measure, "contest", contest)
    monkeypatch.setattr(measure, "STEADY", 1.5)
    result = run("bench", "--length", "8", "--rounds", "3", "--length", "9")
    told = [line for line in result.err.splitlines() if "the machine is busy" in line]
    assert "rounds take 50.0 times the quickest" in told[0]
    assert told[0].endswith(": measuring again")
    assert told[-1].endswith(last)
    assert (result.code, len(told)) == (0, min(len(products) - 1, 3))
    shares = [line.split()[-1] for line in result.out.splitlines() if "the plan's choice" in line]
    assert shares == (["2%", "2%"] if last == "measuring again" else ["40%", "2%"])  # the steadiest attempt counts


@pytest.mark.parametrize("mask", ["none", "causal", "prefix:5", "documents:7", "big_bird"])
def test_json_has_all_times(run: Run, mask: str) -> None:
    options = ("--length", "128", "--training", "--dtype", "bfloat16", "--queries", "128")
    result = run("bench", *TINY[2:], *options, "--mask", mask, "--json", "-")
    told = json.loads(result.out)
    assert told["machine"] == speeds.name_machine()
    (found,) = told["results"]
    assert (found["mask"], found["training"], found["length"], found["dtype"]) == (mask, True, 128, "bfloat16")
    assert found["chosen"] in found["seconds"]
    assert all(len(each) == 2 for each in found["seconds"].values())
    assert found["reasons"]["flex"] == "refuses: FlexAttention gives no gradients on the CPU"


def test_bad_input_gets_a_sentence(run: Run) -> None:
    refused(run("bench", "--mask", "window:3"), "--mask: expected window:LEFT,RIGHT. Received: --mask='window:3'")
    refused(run("bench", "--mask", "windw:3"), "--mask: expected one of none, causal, ")
    refused(run("bench", "--mask", "documents:0"), "--mask: expected documents of one token or more")
    refused(run("bench", "--length", "0"), "--length")
    refused(run("bench", *TINY, "--kv-heads", "3"), "3")
