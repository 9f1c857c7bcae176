"""Collects the pieces of an attention that a model computes in several softmaxes, and merges them into one record.

A piece is one softmax (pieces.py). The pieces are merged when their module has computed all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable

import torch

from headwise.capture.entry import Entry, Reserved
from headwise.capture.follower import Event, Follower, Part, Refusal
from headwise.capture.keep import TooMuch
from headwise.capture.ledger import PART, Ledger, Softmax, where
from headwise.capture.masks import Recognised
from headwise.capture.merging import merge
from headwise.capture.pieces import Piece
from headwise.capture.sites import Place, in_backward
from headwise.capture.tape import Node, Places
from headwise.errors import HeadwiseError

Read = Callable[[Places], Piece]
HOW = "matmul and softmax, put together from pieces"
CHANGED = "it is computed in pieces, and the weights of some were changed after the softmax"


@dataclasses.dataclass
class _Waiting:
    """One softmax that waits for others: a piece of an attention, or a recorded attention that may be a piece."""

    of: Softmax
    where: str
    piece: Piece | None
    read: Read | None = None
    entry: Entry | None = None
    met: object = None  # its product with values, if its weights were changed before; such pieces are not merged


@dataclasses.dataclass
class _Group:
    """The softmaxes that one run of a module computed from the same queries: they may be one attention."""

    place: Place
    queries: Node  # the node (tape.py: how a tensor was made) of the tensor that the queries come from
    heads: int | None
    sources: Places = dataclasses.field(default_factory=lambda: Places(products=False))
    waiting: list[_Waiting] = dataclasses.field(default_factory=list)
    reserved: Reserved | None = None
    refused: bool = False  # whether one of the pieces was refused
    left_out: bool = False  # whether one of the softmaxes got no record

    @property
    def began(self) -> bool:
        """Whether the next softmax is not the first."""
        return bool(self.waiting) or self.left_out


class Recorder(Follower):
    """A follower (an object that watches or edits a model) that keeps records: the methods that `Assembly` calls."""

    ledger: Ledger

    def reserve(self, place: Place) -> Reserved:
        """Reserve a name for the next record of a place (a running module); its later computations get others."""
        raise NotImplementedError

    def reserved(self, entry: Entry) -> Reserved:
        """Return the reserved name of an existing record, for another record that will replace it."""
        raise NotImplementedError

    def withdraw(self, entry: Entry) -> None:
        """Remove a record again: it showed only a part of an attention, or something that is no attention."""
        raise NotImplementedError

    def settle(self) -> None:
        """Decide which records are kept: those so far are no pieces."""
        raise NotImplementedError

    def found(self, place: Place, event: Event, reserved: Reserved | None = None) -> Entry | None:
        """Make a record of a recognised attention, named `reserved` if a name was reserved; None if it is not kept."""
        raise NotImplementedError


class Assembly:
    """Puts together the pieces (softmaxes) of attentions that are computed in several softmaxes, for one `watch`."""

    def __init__(self, watcher: Recorder) -> None:
        self._watcher: Recorder = weakref.proxy(watcher)  # a weak reference: the watcher holds this object
        self._recognised = Recognised()
        self._run: tuple[int, int] | None = None
        self._groups: dict[int, _Group] = {}

    def recorded(self, place: Place, of: Softmax, part: Part, entry: Entry) -> None:
        """Note that an attention was recorded, which may prove to be a piece of a larger one.

        If more softmaxes of the same queries follow, all are pieces of one attention. An attention whose weights the
        model changed as a whole stays a separate record; pieces of it are refused.
        """
        if in_backward():
            return
        group = self.group(place, part.queries, part.heads)
        group.waiting.append(_Waiting(of, where(), None, part.read, entry, part.met))

    def add(self, place: Place, of: Softmax, part: Part) -> None:
        """Add a softmax that is a piece of an attention."""
        if in_backward():  # gradient checkpointing runs it again
            return
        group = self.group(place, part.queries, part.heads)
        try:
            piece = part.read(group.sources)
        except HeadwiseError:
            group.refused = True
            raise
        if group.reserved is None:
            group.reserved = self._watcher.reserve(place)
        group.waiting.append(_Waiting(of, where(), piece))

    def refuse(self, place: Place, queries: Node) -> None:
        """Note that a piece was refused. A record of the other pieces would show only a part of the attention."""
        self.group(place, queries, None).refused = True

    def begin(self, place: Place) -> None:
        """Note that a run of a module computes attention: the pieces of the run before are complete."""
        run = id(place.module), self._watcher.parts.find_run(place)
        if run != self._run:
            self.close()
            self._run = run

    def group(self, place: Place, queries: Node, heads: int | None) -> _Group:
        """Return the softmaxes of these queries in the run of the module that is going on."""
        self.begin(place)
        return self._groups.setdefault(id(queries), _Group(place, queries, heads))

    def close(self) -> None:
        """Merge the collected pieces into records, because no more pieces will come."""
        groups, self._groups, self._run = self._groups, {}, None
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for group in groups.values():
                self._close(group)
        self._watcher.settle()

    def _close(self, group: _Group) -> None:
        recorded = [each for each in group.waiting if each.entry is not None]
        met = {id(each.met) for each in group.waiting}
        if len(met) == 1 and all(each.met is not None for each in group.waiting) and not group.refused:
            return  # one softmax, or several that were added or subtracted
        if group.refused:
            self._deny(group, PART)
        elif len(group.waiting) > 1 or len(recorded) < len(group.waiting):
            try:
                self._merge(group)
            except TooMuch:
                raise
            except (HeadwiseError, RuntimeError) as error:
                if len(recorded) < len(group.waiting):
                    self._deny(group, str(error))
                    return
                names = ", ".join(each.entry.site.name for each in recorded if each.entry is not None)
                self._watcher.note(f"{names} have queries in common, and are records of their own: {error}")

    def _merge(self, group: _Group) -> None:
        read = [each.piece or (each.read and each.read(group.sources)) for each in group.waiting]
        pieces = [piece for piece in read if piece is not None]
        call = merge(pieces, group.sources, group.heads, self._recognised)
        if any(each.met is not None for each in group.waiting):
            self._deny(group, CHANGED)
            return
        entries = [each.entry for each in group.waiting if each.entry is not None]
        reserved = self._watcher.reserved(entries[0]) if entries else group.reserved
        for entry in entries:
            self._watcher.withdraw(entry)
        whole = self._watcher.found(group.place, Event(call, None, lambda x: x, HOW), reserved)
        for each in group.waiting:
            self._watcher.ledger.strike(each.of, group.place.name)
            each.of.seen = group.place.name
            if whole is not None:
                each.of.withdraw.append(functools.partial(self._watcher.withdraw, whole))

    def _deny(self, group: _Group, reason: str) -> None:
        for each in group.waiting:
            if each.entry is not None:
                self._watcher.withdraw(each.entry)
            name = None if group.reserved is None else group.reserved[0].name
            name = name if each.entry is None else each.entry.site.name
            told = PART if each.entry is not None and each.met is None else reason
            each.of.seen = ""
            self._watcher.refuse(group.place, Refusal(told, where=each.where, softmax=each.of, name=name))
