"""The attentions of a module, found in its traced operations.

Every softmax over the results of a product is a *site* (site.py). The marks (marks.py) tell which query and which key,
of which head, each of its scores comes from. With them queries, keys, scores, weights and values are put into
[B, H, Q, K] order, whatever order the code uses; if that is impossible, it is a finding (laws/layout.py).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headwise.doctor.calling.interface import Inputs, Result
from headwise.doctor.calling.way import in_dtype
from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Softmax, Trace
from headwise.doctor.reading.marks import MIXED
from headwise.doctor.reading.site import Site
from headwise.doctor.reading.trace import trace
from headwise.doctor.subject import foreign_backend
from headwise.language import Sentence

if TYPE_CHECKING:
    from headwise.doctor.subject import Subject


@dataclasses.dataclass
class Anatomy:
    """All attentions of a module in one traced forward."""

    subject: Subject
    inputs: Inputs
    run: Trace
    sites: tuple[Site, ...]
    blocks: tuple[Site, ...] = ()  # of keys, whose exponentials are divided by a sum over several blocks

    @functools.cached_property
    def again(self) -> tuple[Site, ...] | None:
        """The same sites with other inputs of the same shape; None if their number differs."""
        return self._as_many(look(self.subject, seed=1).sites)

    def masked(self, given: Mapping[str, Any]) -> tuple[Site, ...] | None:
        """The same sites with the same inputs and masks, given by the names of their arguments; None if their number
        differs. Raises DoctorError.
        """
        return self._as_many(look(self.subject, given=given).sites)

    def _as_many(self, sites: tuple[Site, ...]) -> tuple[Site, ...] | None:
        return sites if len(sites) == len(self.sites) else None


def dissect(subject: Subject) -> Anatomy:
    """Trace one forward of a module and find its attentions. Raises Unreadable."""
    if backend := foreign_backend(subject.module):
        raise Unreadable(
            Sentence("its operations run on {backend}, and torch does not see them").format(backend=backend)
        )
    try:
        found = look(subject)
    except Exception as error:  # whatever the module raises while it is traced
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    if not found.sites:
        run = found.run
        if run.out is not None and run.out.live and not run.problem and not run.softmaxes and not run.exponentials:
            raise NoAttention("there is no softmax in its operations, from its inputs to its output")
        said = run.problem or "its operations contain no softmax over a product of two tensors"
        raise Unreadable(said) if run.problem or run.softmaxes else NoSoftmax(said)
    return found


def look(
    subject: Subject,
    *,
    seed: int = 0,
    batch: int = 3,
    length: int | None = None,
    train: bool = False,
    dtype: torch.dtype | None = None,
    change: Callable[[nn.Module], None] | None = None,
    edit: Callable[[Inputs], Inputs] | None = None,
    **arguments: Any,
) -> Anatomy:
    """One traced forward, on a copy that `change` may change, with inputs that `edit` may change.
    `arguments` are those of `Interface.run`.
    """
    twin = subject.fresh()
    if change is not None:
        change(twin.module)
    twin.module.train(train)
    if dtype is not None:
        in_dtype(twin.module, dtype)
    inputs = twin.interface.inputs(batch, length, seed=seed, dtype=dtype)
    inputs = inputs if edit is None else edit(inputs)

    def call() -> Result:
        return twin.interface.run(inputs, **arguments)

    with torch.random.fork_rng(devices=[]):  # the random numbers of dropout are the same in every forward
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also asks every absent device
        run = trace(twin.module, (inputs.query, inputs.key, inputs.value), call, lambda result: result.output)
    return Anatomy(subject, inputs, run, tuple(_sites(run, run.softmaxes)), tuple(_sites(run, run.blocks)))


def _sites(run: Trace, softmaxes: Sequence[Softmax]) -> Iterator[Site]:
    for softmax in softmaxes:
        numbers = marks.seed_of(softmax.source)
        candidates, counts = numbers[numbers >= 0].unique(return_counts=True)
        if not len(candidates):
            continue
        product = run.seed(int(candidates[counts.argmax()]))
        if product.kind == "projection" and bool((product.token == MIXED).any()):
            continue  # additive attention, or mixed heads: scores that are not a product of one query and one key
        if product.left is not None and product.right is not None:
            yield Site(run, softmax, product)


class Unreadable(Exception):  # noqa: N818 (an answer, not a failure)
    """No attention can be found in a trace; the message says why."""


class NoSoftmax(Unreadable):
    """It was traced, and has no softmax, nor one that is written by hand over a product."""


class NoAttention(NoSoftmax):
    """The trace is complete from the inputs to the output, and has no softmax."""
