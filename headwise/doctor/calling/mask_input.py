"""An argument that takes a mask: its meaning, its shape, and how to convert one of our masks to it."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

import torch
from torch import Tensor

from headwise.errors import DoctorError
from headwise.language import Sentence, join

Form = Literal["allowed", "forbidden", "additive"]


@dataclasses.dataclass(frozen=True)
class MaskInput:
    """One argument of forward that takes a mask."""

    parameter: str
    what: Literal["cells", "keys"]  # it masks cells [Q, K], or keys (padding)
    form: Form  # True/1 = may attend; True/1 = forbidden; numbers that are added
    dtype: torch.dtype  # of the value that is passed
    shape: str  # letters and ones: "BK", "B1QK", "(BH)QK"; "QQ" = of the queries themselves; "B" = lengths, or shares
    works: bool  # in the trial, forbidden keys no longer affected the output
    claim: str = ""  # what name, docstring, comment or annotation say about its polarity
    claimed: Form | None = None  # the form that this means
    leak: float = 0.0  # in the trial, the influence of forbidden keys relative to that of allowed keys

    @property
    def own(self) -> bool:
        """Whether it masks the queries' own sequence in a module that also has a memory."""
        return "K" not in self.shape and self.shape != "B"

    @property
    def by_example(self) -> bool:
        """Whether each example of a batch may have a different mask."""
        return "B" in self.shape

    def means(self) -> Sentence:
        """The meaning of its values, in words."""
        if self.shape == "B":
            if self.dtype.is_floating_point:
                return Sentence("the share of keys that are real, from the first")
            return Sentence("the number of real keys, from the first")
        if self.form == "additive":
            return Sentence("added to the scores, 0 = may attend")
        yes = "True" if self.dtype == torch.bool else "1"
        return Sentence(f"{yes} = {'may attend' if self.form == 'allowed' else 'forbidden'}")

    def describe(self) -> Sentence:
        """`mask [B, 1, Q, K], True = may attend`."""
        dims = ["B·H" if part == "(BH)" else part for part in re.findall(r"\(BH\)|.", self.shape)]
        return join([f"{self.parameter} [{', '.join(dims)}]", self.means()])

    def fits(self, allowed: Tensor) -> bool:
        """Whether it can express this mask: lengths can express only padding at the end."""
        if self.shape == "B":
            return bool((allowed[:, 1:] <= allowed[:, :-1]).all())
        return self.by_example or bool((allowed == allowed[:1]).all())

    def value(self, allowed: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
        """The value to pass for allowed cells [B, Q, K] (for "keys": [B, K]), True = may attend.

        Raises:
            DoctorError: it cannot express this mask.
        """
        if not self.fits(allowed):
            raise DoctorError(f"{self.describe()}: it cannot express this mask. Received: {list(allowed.shape)}")
        if self.shape == "B":
            count = allowed.sum(-1)
            return (count / allowed.shape[-1]).to(dtype) if self.dtype.is_floating_point else count
        return encode(_lay(allowed, self.shape, heads), self.form, self.dtype if self.form != "additive" else dtype)


def encode(allowed: Tensor, form: Form, dtype: torch.dtype) -> Tensor:
    """A bool mask (True = may attend) in a form and dtype."""
    if form == "additive":
        zero = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
        return zero.masked_fill(~allowed, torch.finfo(dtype).min)
    return (allowed if form == "allowed" else ~allowed).to(dtype)


def _lay(allowed: Tensor, shape: str, heads: int) -> Tensor:
    """[B, Q, K] or [B, K] in a shape given by letters."""
    if shape.startswith("(BH)"):
        return allowed.repeat_interleave(heads, 0)
    if shape.endswith("B"):
        return allowed.t().contiguous()
    laid = allowed if "B" in shape else allowed[0]
    for place, letter in enumerate(shape):
        if letter in "1H":
            laid = laid.unsqueeze(place)
            laid = laid.repeat_interleave(heads, place) if letter == "H" else laid
    return laid
