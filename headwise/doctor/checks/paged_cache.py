"""A cache of pages: what stands behind the newest token of a sequence is not read.

The pages of a pool are handed on without being cleared, so a slot behind the newest token holds another sequence's
numbers (Kwon et al. 2023). The slots are filled with noise, and then with other noise behind the newest token.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling import names, sizes
from headwise.doctor.calling.way import noise
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import ROUNDING, Probe, gap

FINDINGS = ("masked-key-counts",)

_SIZE = ["block_size", "page_size"]
_PAGES = 4  # of each sequence


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    roles = probe.interface.roles
    table = next((name for name in roles if names.PAGES.search(name)), None)
    lengths = next((name for name, role in roles.items() if role == "lengths"), None)
    pools = {name: x for name, x in probe.module.named_buffers() if x.is_floating_point() and x.ndim >= 3}
    size = next(iter(sizes.find(probe.module, _SIZE)), None)
    if table is None or lengths is None or size is None or len(pools) < 2 or size < 2:
        raise NotApplicable("it has no cache of pages")
    dims = {name: d for name, x in pools.items() if (d := next((d for d in (1, 2) if x.shape[d] == size), 0))}
    if len(dims) < len(pools):
        raise NotApplicable("it has no cache of pages")
    inputs = probe.inputs(2)
    tables = torch.arange(2 * _PAGES).view(2, _PAGES)
    known = size + size // 2  # one page is full, the second one half
    given = {table: tables, lengths: torch.full((2,), known)}
    newest = known  # where the length does not count the newest token, which stands there

    def out(other: range) -> Tensor | Exception:
        """The output, with other numbers in these slots of both sequences."""
        nonlocal newest
        filled: dict[str, Tensor] = {}
        for i, (name, x) in enumerate(pools.items()):
            numbers = noise(*x.shape, seed=i, dtype=x.dtype, device=x.device)
            instead = noise(*x.shape, seed=i + 9, dtype=x.dtype, device=x.device)
            for at in other:
                slot = numbers.select(dims[name], at % size)
                slot[tables[:, at // size]] = instead.select(dims[name], at % size)[tables[:, at // size]]
            x.copy_(numbers)
            filled[name] = numbers
        found = probe.attempt(inputs, given=given)
        name, x = next(iter(pools.items()))
        # [slots] of the first sequence: which one the call has written.
        written = (x != filled[name]).movedim(dims[name], 1)[tables[0]].flatten(0, 1).flatten(1).any(1).nonzero()
        if not other and len(written) == 1:
            newest = int(written)
        return found

    with torch.no_grad():
        plain, first = out(range(0)), out(range(1))
        later = out(range(newest + 1, _PAGES * size))
    if not all(isinstance(x, Tensor) for x in (plain, first, later)) or gap(plain, first) <= ROUNDING:  # type: ignore[arg-type]
        raise NotChecked(f"it does not run with {table} [B, pages] and {lengths} [B], or does not read its pages")
    change = gap(plain, later)  # type: ignore[arg-type]
    if change > ROUNDING:
        yield Finding(
            "masked-key-counts",
            "bug",
            f"with {lengths} = {known} and pages of {size} slots, the numbers behind slot {newest}, that of the newest "
            f"token, change the output by {change:.2g} of its size: slots are read that hold no token of this sequence",
            "compare the position of each slot with the length: position < length, not page < pages, and not <=",
            numbers={"change": change},
        )
