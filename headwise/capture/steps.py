"""Makes the statistics of a generation from the statistics of its steps."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from headwise.call import Scores
from headwise.capture.growing import Growing
from headwise.records.statistics import Statistic
from headwise.records.statistics.computed import Computed


class Step(NamedTuple):
    """An attention call as the model computed it, and its statistics."""

    call: Scores
    computed: Computed


class Steps:
    """The statistics of a call and of the decoding steps that follow it, joined as if they were one call."""

    def __init__(self, first: Step) -> None:
        self.first = first.computed
        self._parts = {each.name: _make_growing(first.call, each, answer, 0) for each, answer in first.computed}

    @property
    def nbytes(self) -> int:
        """The size of everything that is kept, in bytes."""
        return sum(part.nbytes for parts in self._parts.values() for part in parts)

    def append(self, step: Step, total: int, *, grew: bool) -> None:
        """Add a step, after which there are `total` keys. `grew`: whether the step added keys (self-attention)."""
        before = total - step.call.shape[3]
        self.first = tuple((each, None) for each, _ in self.first)  # what is needed of the calls is in the parts
        for each, answer in step.computed:
            if not grew and each.column is not None and each.column.within_sequence:
                self._parts[each.name] = []  # each step counts its rows from the last key
            parts = self._parts[each.name]
            for part, x in zip(parts, _make_growing(step.call, each, answer, before) if parts else [], strict=True):
                if each.of_steps == "rows":
                    part.append(x.tensor)
                else:
                    part.append(part.tensor.new_zeros(*part.tensor.shape[:2], total - part.length, 1))
                    part.tensor[:, :, before:] += x.tensor.to(part.tensor.device)

    def cut(self, count: int) -> None:
        """Remove the last `count` rows. Statistics of keys are unknown afterwards, because they include these rows."""
        self.first = tuple((each, None) for each, _ in self.first)
        for each, _ in self.first:
            if each.of_steps == "rows":
                for part in self._parts[each.name]:
                    part.cut(count)
            else:
                self._parts[each.name] = []

    def computed(self, rows: Tensor | None, k_len: int) -> Computed:
        """Return the statistics of all rows (queries).

        `rows` [N, Q]: for each row of N beams, the example of its step; -1 = the beam had ended.
        """
        return tuple((each, self._joined(each, rows, k_len)) for each, _ in self.first)

    def _joined(self, statistic: Statistic, rows: Tensor | None, k_len: int) -> Any:
        parts = self._parts[statistic.name]
        if not parts:
            return None
        if statistic.of_steps == "keys":  # it is not known any more to which beams the rows belonged
            return parts[0].tensor[..., 0].clone() if rows is None else None
        found = [part.of_beams(rows) for part in parts]
        if rows is not None:
            found = [x.masked_fill(rows[:, None, :, None] < 0, statistic.nothing) for x in found]
        return statistic.join(found, k_len)


def _make_growing(call: Scores, statistic: Statistic, answer: Any, before: int) -> list[Growing]:
    if answer is None or 0 in call.shape or not statistic.of_steps:
        return []
    by_row = statistic.of_steps == "rows"
    return [Growing(x) for x in (statistic.of_step(call, answer, before) if by_row else (answer[..., None],))]
