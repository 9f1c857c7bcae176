"""Models of other libraries, where these are installed: no record is wrong, and no attention is missed in silence."""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.capture.families.compare import compare
from tests.capture.libraries.__main__ import of_keras
from tests.capture.libraries.library import LIBRARIES, cases

OPEN = {
    ("lucidrains", "SepViT"): "the values have one more dimension than the weights",
    ("lucidrains", "ViT, patch merger"): "its queries are parameters: the counter calls its softmax a gate",
    ("timm", "efficientvit_m0"): "the values are multiplied by the transposed weights",
    ("timm", "shvit_s1"): "the values are multiplied by the transposed weights",
    ("timm", "gemma4_vit_167m"): "the counter runs other kernels, whose rounding adds up to 1e-4 over its layers",
    ("lucidrains", "normalised ViT"): "its weights are computed in each pass: the counter takes them for activations",
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library(library: str) -> None:
    try:
        models = cases(library)
    except ImportError as error:
        pytest.skip(f"{library} is not installed here ({error}): pip install {LIBRARIES[library]}")
    faults: list[str] = []
    for name, make in models.items():
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = compare(*make())
        result = of_keras(result) if library.startswith("keras") else result
        if (library, name) not in OPEN:
            faults += [f"{name}: {found}" for found in result.findings if found.verdict in ("wrong", "silent")]
    assert not faults
