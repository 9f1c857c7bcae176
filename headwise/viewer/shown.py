"""Holds the inputs that a server shows, and the results that were computed about their layers."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.records import AttentionRecord
from headwise.viewer.answers import Answers
from headwise.viewer.inputs import Input
from headwise.viewer.statistics import Numbers, compute_statistics


class Shown:
    """The inputs of one run, with the results about them, which are dropped together with the inputs."""

    def __init__(self, name: str, inputs: Sequence[Input]) -> None:
        self.name, self.inputs = name, inputs
        self.answers: dict[tuple[int, int, int], Answers] = {}
        self.told: dict[AttentionRecord, dict[int, Numbers]] = {}

    def layer(self, place: tuple[int, int, int]) -> Answers:
        """Return the `Answers` about one layer. `place`: (index of the input, of its stack of layers, in the stack)."""
        if place not in self.answers:
            layer = self.inputs[place[0]].stacks[place[1]].layers[place[2]]
            self.answers[place] = Answers(layer.record, layer.example)
        return self.answers[place]

    def statistics(self, record: AttentionRecord, example: int, rows: int | None) -> Numbers:
        """Return the statistics of one example; they are computed once, for all examples of the record together."""
        if record not in self.told:
            stacks = [stack for each in self.inputs for stack in each.stacks]
            of = {layer.example: stack for stack in stacks for layer in stack.layers if layer.record is record}
            tokens = {each: stack.cols.tokens for each, stack in of.items()}
            self.told[record] = compute_statistics(record, tokens, kind=next(iter(of.values())).kind, rows=rows)
        return self.told[record][example]
