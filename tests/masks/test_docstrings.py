"""The matrices in the docstrings of the masks are what the masks say."""

from __future__ import annotations

import doctest
import inspect

import pytest
import torch

from headwise import masks

FUNCTIONS = [name for name in masks.__all__ if inspect.isfunction(getattr(masks, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_matrix_in_the_docstring_is_what_the_mask_draws(name: str) -> None:
    function = getattr(masks, name)
    examples = doctest.DocTestFinder(recurse=False).find(function, name, globs={**vars(masks), "torch": torch})
    runner = doctest.DocTestRunner(verbose=False)
    results = [runner.run(example) for example in examples]
    assert sum(result.attempted for result in results) > 0, "every exported mask shows its matrix"
    assert sum(result.failed for result in results) == 0
