"""`scripts/generations --implementation headwise`: every way of generating with every cache, against eager attention.

The cases are those whose records tests/capture/generations.py compares. Here both models generate with the same seed,
and the logits of each step, along the tokens that both chose, are compared.
"""

from __future__ import annotations

import contextlib
import warnings

import torch
from torch import Tensor

import headwise.transformers  # noqa: F401 (it registers "headwise")
from tests.capture.generations import Case, Outcome, cases, inputs_of, likely_to_end, model_of, options_of, tell

EQUAL = 2e-5  # largest difference of logits, relative to the largest logit


def generate(case: Case, implementation: str) -> tuple[Tensor, Tensor]:
    """The returned tokens [B, L], and the logits of each step [steps, B, V]."""
    model, given = model_of(case.family, implementation), inputs_of(case)
    model.__dict__.pop("_previous_max_cache_length", None)  # of the last static cache
    ends = likely_to_end(model) if case.beams else contextlib.nullcontext()
    with ends, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(3)
        options = options_of(case, model) | {"output_logits": True, "return_dict_in_generate": True}
        out = model.generate(**given, **options)
    return out.sequences, torch.stack(out.logits)


def outcome(case: Case) -> Outcome:
    """Generate with eager attention and with headwise."""
    try:
        expected = generate(case, "eager")
    except Exception as error:
        return Outcome(case, "not run", f"{type(error).__name__}: {error}")
    try:
        found = generate(case, "headwise")
    except Exception as error:
        return Outcome(case, "wrong", f"{type(error).__name__}: {error}")
    problem = differ(expected, found)
    if problem and case.cache == "quantised":  # a number that is rounded up or down changes all that follow
        problem = differ(generate(case, "sdpa"), found)
    return Outcome(case, "wrong" if problem else "equal", problem)


def differ(expected: tuple[Tensor, Tensor], found: tuple[Tensor, Tensor]) -> str:
    """What differs, in words; nothing if nothing does."""
    if not torch.equal(expected[0], found[0]):
        return "other tokens"
    error = float((expected[1] - found[1]).abs().max() / expected[1].abs().max())
    return f"logits off by {error:.1e}" if error > EQUAL else ""


if __name__ == "__main__":
    tell((case for case in cases() if case.implementation == "eager"), outcome)  # the implementation is no part of them
