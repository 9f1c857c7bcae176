"""About forty families of Hugging Face models, half of them slow: every softmax of their attention against the records.

`scripts/families` runs all of them.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.capture.families import models
from tests.capture.families import run as running
from tests.capture.families.run import examine
from tests.versions import since

EXACT = """
albert bart bert big_bird blip bloom clip cohere2 deberta-v2 deepseek_v3 detr esm falcon flaubert funnel gemma2 gpt2
gpt_neo gpt_oss gptj imagegpt llama longformer longt5 mistral mpt mt5 openai-gpt opt pegasus_x persimmon phi3
prophetnet qwen3_moe roformer swin t5 vit wav2vec2 whisper xlnet
"""
# What is not exact, of all inputs: a line becomes shorter when the watch sees more.
OPEN: dict[str, dict[str, int]] = {
    "nystromformer": {"refused": 6},
    "reformer": {"refused": 3},
}
NO_ATTENTION = ("fnet", "mamba")
# Those whose attention is written as in another that is not slow, or takes many seconds.
SLOW = """
albert big_bird cohere2 esm falcon flaubert funnel gpt_neo gptj imagegpt longt5 mistral mt5 openai-gpt opt pegasus_x
persimmon phi3 prophetnet qwen3_moe roformer swin vit
"""


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(each, marks=pytest.mark.slow if each in SLOW.split() else ())
        for each in (*EXACT.split(), *OPEN, *NO_ATTENTION)
    ],
)
def test_every_softmax_of_the_attention_is_recorded_or_listed(family: str) -> None:
    since("transformers", "5.20")
    report = examine(family)
    assert not report.error
    total: Counter[str] = sum((result.count() for result in report.results.values()), Counter())
    assert bool(total) == (family not in NO_ATTENTION)
    del total["exact"]
    assert dict(total) == OPEN.get(family, {}), [
        finding for result in report.results.values() for finding in result.findings if finding.verdict != "exact"
    ]
    assert not any(result.changed or result.fused for result in report.results.values())


def test_the_families_are_those_of_the_mapping() -> None:
    known = models.families()
    assert {*EXACT.split(), *OPEN, *NO_ATTENTION} <= set(known)
    assert {*SLOW.split()} < {*EXACT.split()}
    assert len(known) == len(set(known)) > 300


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_family_that_hangs_is_ended_with_what_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hang(*_: Any) -> None:
        started = subprocess.Popen(["sleep", "600"])
        (tmp_path / "started").write_text(str(started.pid))
        time.sleep(600)

    monkeypatch.setattr(running, "examine", hang)
    threads = torch.get_num_threads()
    try:
        (report,) = running.run(["bert"], jobs=1, seconds=1)
    finally:
        torch.set_num_threads(threads)
    assert report.error == "not done after 1 s"
    state = Path(f"/proc/{(tmp_path / 'started').read_text()}/stat")
    for _ in range(100):
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("what the family started is still running")
