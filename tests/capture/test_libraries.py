"""Models of other libraries, where these are installed: no record is wrong, and no attention is missed in silence."""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.capture.families.compare import compare
from tests.capture.libraries.library import LIBRARIES, cases

# Faults of the counter, not of the watch.
OPEN = {
    ("timm", "convit_tiny"): "the counter loses weights that are divided in place",
    ("timm", "gemma4_vit_167m"): "the counter runs other kernels, whose rounding adds up to 1e-4 over its layers",
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
        found = [f"{name}: {each}" for each in result.findings if each.verdict in ("wrong", "silent")]
        if (library, name) not in OPEN:
            faults += found
        elif not found:
            faults.append(f"{name}: it has no fault any more; remove it from OPEN")
    assert not faults
