"""A record that has only statistics, for an attention call that is watched with `keep=False`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from headwise.call import Share
from headwise.errors import RecordError
from headwise.records.record import AttentionRecord, Extras
from headwise.records.site import Site
from headwise.records.statistics import Statistic, list_options, make
from headwise.records.statistics.computed import Computed, look_up, not_known
from headwise.registry import Bundle


class ComputedRecord(AttentionRecord):
    """The statistics of one attention call, computed during the call; its queries, keys and mask were not kept.

    `statistics()`, and the methods that are named after statistics, return these statistics. `statistics()` without
    names returns all known statistics; an option that is not given has the value with which the statistic was computed;
    `rows=` is ignored, because all rows are known. Anything that needs the weights raises RecordError.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        computed: Computed,
        *,
        site: Site | None = None,
        share: Share | None = None,
    ) -> None:
        self._shape, self._computed, self.site, self.extras = shape, computed, site, Extras()
        self._share, self.row_names, self.col_names = share, None, None

    @property
    def call(self) -> NoReturn:
        """Raise RecordError, because the call was not kept."""
        raise RecordError(
            f"{self._where}: the queries and keys were not kept (keep=False), so only these statistics of the call are "
            f"known: {', '.join(self._known())}. For anything else watch the model with keep=True"
        )

    @property
    def share(self) -> Share | None:
        """The positions of the record's rows and keys in a longer sequence, as in `AttentionRecord`, or None."""
        return self._share

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The sizes (B, H, Q, K)."""
        return self._shape

    def __repr__(self) -> str:
        sizes = ", ".join(f"{letter}={size}" for letter, size in zip("BHQK", self.shape, strict=True))
        return f"ComputedRecord({sizes}, statistics: {', '.join(self._known())})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[Bundle, Bundle]:
        return {"text/plain": repr(self)}, {}

    @property
    def _where(self) -> str:
        return self.site.name if self.site else "this record"

    def _known(self) -> dict[str, Statistic]:
        return {each.name: each for each, answer in self._computed if answer is not None}

    def _asked(self, names: Sequence[str], options: Mapping[str, Any]) -> list[Statistic]:
        known = self._known()
        asked = make(names or tuple(known), options)
        return [each if list_options(type(each)) & options.keys() else known.get(each.name, each) for each in asked]

    def _answers(self, asked: Sequence[Statistic], rows: int | None) -> dict[str, Any]:
        answers = look_up(self._computed, asked)
        if missing := [each for each in asked if each.name not in answers]:
            raise not_known(self._computed, missing, self._where)
        return answers
