"""Some families of transformers on headwise's kernels, as `scripts/families --implementation headwise` examines all."""

from __future__ import annotations

import pytest

from tests.versions import since

since("transformers", "5.20")

from tests.transformers.families import examine  # noqa: E402

FAMILIES = ("bert", "modernbert", "t5", "whisper", "vit", "siglip", "deepseek_v3", "qwen2_vl")


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_and_gradients_are_those_of_eager_attention(family: str) -> None:
    report = examine(family)
    assert (report.verdict, report.why) == ("equal", "")
    assert report.calls > 0


def test_a_model_that_asks_no_registry_is_not_reached() -> None:
    assert examine("blip").verdict == "not reached"


def test_a_model_without_attention_has_none() -> None:
    assert examine("mamba").verdict == "no attention"
