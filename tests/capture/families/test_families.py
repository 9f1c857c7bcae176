"""About forty families of Hugging Face models, half of them slow: every softmax of their attention against the records.

`scripts/families` runs all of them.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.versions import since

since("transformers", "5.20")

from tests.capture.families import models  # noqa: E402
from tests.capture.families.run import examine  # noqa: E402

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
