"""Parses the options --mask of commands: `causal`, `window:LEFT,RIGHT`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headwise.errors import ArgumentError


def parse_mask(given: str, forms: Sequence[str], *, where: str = "") -> tuple[str, list[int]]:
    """Parse a text such as `window:2,0` into (name, numbers). It must have one of the `forms`.

    `where`: the text with which an error begins.
    """
    name, _, numbers = given.partition(":")
    form = next((form for form in forms if form.partition(":")[0] == name), "")
    wanted = form.partition(":")[2].count(",") + 1 if ":" in form else 0
    if not form or not (re.fullmatch(r"\d+(,\d+)*", numbers) if wanted else given == name):
        raise ArgumentError(
            "--mask: {where}expected one of {forms}. Received: --mask={given!r}",
            where=where,
            forms=", ".join(forms),
            given=given,
        )
    values = [int(each) for each in numbers.split(",")] if wanted else []
    if len(values) != wanted:
        raise ArgumentError("--mask: expected {form}. Received: --mask={given!r}", form=form, given=given)
    return name, values
