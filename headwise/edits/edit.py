"""The base class of edits. An edit changes a call (one attention computation), its weights, or its output."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.edits.where import Where
from headwise.errors import ArgumentError, DtypeError, brief
from headwise.records.names import Choice, check_choice

if TYPE_CHECKING:
    from typing_extensions import Self

Numbers = int | Sequence[int] | None
Steps = Literal["prompt", "decode"] | range | None


class Chosen(TypedDict, total=False):
    """The keyword arguments that every edit has besides `where`: see `Edit`."""

    heads: Numbers
    key_heads: Numbers
    examples: Numbers
    steps: Steps


@dataclasses.dataclass(frozen=True, eq=False)
class Edit:
    """The base class of edits. A subclass overrides some of the methods `call`, `weights` and `output`.

    A method that is not overridden changes nothing.

    Args:
        where: which layers to edit, as for `watch(only=)`: a path or a part of a path, a pattern, a number from 0, or
            a list of these.
        heads: the query heads; None = all.
        key_heads: key/value heads, instead of `heads`: all query heads that read them are edited (grouped queries).
        examples: indices in the batch that was passed to `generate`: all beams of an example count as one; None = all.
        steps: the passes of the model in which the edit applies: "prompt" = the passes over the prompt, which are step
            0; "decode" = the passes after the prompt, from step 1; or a range of steps; None = all. The prompt is the
            input of `generate`; without `generate` it is the sequence up to the last pass over several tokens.
    """

    where: Choice
    heads: Numbers = dataclasses.field(default=None, kw_only=True)
    key_heads: Numbers = dataclasses.field(default=None, kw_only=True)
    examples: Numbers = dataclasses.field(default=None, kw_only=True)
    steps: Steps = dataclasses.field(default=None, kw_only=True)

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Raise DtypeError for an argument that the edit does not have."""
        edit = super().__new__(cls)
        known = [field.name for field in dataclasses.fields(cls) if field.init]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"Did you mean {near[0]}=?" if near else f"Its arguments: {', '.join(known)}"
                raise DtypeError(f"{edit.name}: unknown argument. Received: {name}={brief(given[name])}. {hint}")
        return edit

    def __post_init__(self) -> None:
        for each in check_choice(self.where):
            if isinstance(each, int) and each < 0:
                raise ArgumentError(
                    f"{self.name}: which layer is the last is not known before the model has run. Received: "
                    f"where={brief(self.where)}. Name the layer: headwise.watch shows the names"
                )
        if self.heads is not None and self.key_heads is not None:
            raise ArgumentError(
                f"{self.name}: give heads= or key_heads=. Received: heads={brief(self.heads)}, "
                f"key_heads={brief(self.key_heads)}"
            )
        if not (self.steps is None or self.steps in ("prompt", "decode") or isinstance(self.steps, range)):
            raise ArgumentError(
                f'{self.name}: steps must be "prompt", "decode", a range or None. Received: steps={brief(self.steps)}'
            )

    @property
    def name(self) -> str:
        """The name of the edit in messages."""
        return type(self).__name__.lower()

    @property
    def of_output(self) -> bool:
        """Whether the edit changes only outputs, so that the model's own kernel runs."""
        return type(self).call is Edit.call and not self.needs_weights

    @property
    def changes_output(self) -> bool:
        """Whether the edit changes outputs; it may change more."""
        return type(self).output is not Edit.output

    @property
    def needs_weights(self) -> bool:
        """Whether the edit changes weights, so that the weights have to be computed, some rows at a time."""
        return type(self).weights is not Edit.weights

    @property
    def sets(self) -> str:
        """The thing that the edit overwrites ("output" …): no second edit may do so for one head. "" = nothing."""
        return ""

    def call(self, call: AttentionCall, at: Where) -> AttentionCall:
        """Return the call that replaces this one."""
        return call

    def weights(self, weights: Tensor, at: Where, rows: slice) -> Tensor:
        """Return the weights [B, H, rows, K] that replace these weights: some queries (`rows`), each with all keys."""
        return weights

    def output(self, out: Tensor, at: Where) -> Tensor:
        """Return the output [B, H, Q, E] that replaces this one."""
        return out

    def applies(self, at: Where) -> bool:
        """Return whether this pass is in the edit's `steps`. ArgumentError for heads or examples that do not exist."""
        self.cells(at)
        if isinstance(self.steps, range):
            return at.step in self.steps
        return self.steps is None or (self.steps == "prompt") == (at.step == 0)

    def _chosen(self, name: Literal["heads", "key_heads", "examples"], count: int, at: Where) -> Tensor:
        """Return which of `count` heads or examples the attribute `name` selects: bool [count], True = selected."""
        choice: Numbers = getattr(self, name)
        found = torch.zeros(count, dtype=torch.bool, device=at.device)
        if choice is None:
            return ~found
        parts = [choice] if isinstance(choice, int) else [*choice]
        numbers = [int(each) for each in parts if hasattr(each, "__index__") and not isinstance(each, bool)]
        if not numbers or len(numbers) < len(parts) or not all(-count <= each < count for each in numbers):
            raise ArgumentError(
                f"{self.name}: {name} of {at.site} are numbered 0 … {count - 1}. Received: {name}={brief(choice)}"
            )
        found[numbers] = True
        return found

    def cells(self, at: Where) -> Tensor:
        """Return which heads of which examples the edit selects: bool [B, H], True = selected."""
        if self.key_heads is None:
            heads = self._chosen("heads", at.heads, at)
        else:
            heads = self._chosen("key_heads", at.key_heads, at).repeat_interleave(at.heads // at.key_heads)
        examples = self._chosen("examples", at.batch // at.repeats, at).repeat_interleave(at.repeats)
        return examples[:, None] & heads

    def everywhere(self, at: Where) -> bool:
        """Return whether the edit selects all heads of all examples."""
        return bool(self.cells(at).all())


def check_factor(what: str, value: object, hint: str = "") -> None:
    """Raise ArgumentError unless `value` is a finite number above 0, or a tensor of one number."""
    number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not (number > 0 and math.isfinite(number)):
        raise ArgumentError(f"{what} must be a finite number above 0{hint}. Received: {brief(value)}")
