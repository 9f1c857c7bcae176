"""The mask that a module makes itself: a causal mask of the right direction and diagonal, a window of the stated width.

Which scores are masked without a mask argument is read from the softmax's input, not inferred from outputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.scale import FORBIDDEN
from headwise.doctor.reading.site import Site

FINDINGS = (
    "causal-leak",
    "mask-polarity",
    "causal-corner",
    "window-off-by-one",
    "window-ignored",
    "mask-fill-too-small",
)

_WINDOW = re.compile(
    r"(^|_)(window|sliding|radius|local|span|lookback|look_back|band|neighbou?rs?|window_size|w|ws|win|left|context_size)(_|$|size)",
    re.IGNORECASE,
)
# These do not count the query itself, and those of _SIZE count it.
_NEIGHBOURS = re.compile(r"radius|left|look_?back|neighbou?r|n_back|band", re.IGNORECASE)
_SIZE = re.compile(r"size|sliding|width|length", re.IGNORECASE)


def check(patient: Patient) -> Iterator[Finding]:
    anatomy = patient.see()
    seen = False
    for site in anatomy.sites:
        if site.grid is None:
            continue
        allowed = _allowed(site)
        if allowed is None or bool(allowed.all()):
            continue
        seen = True
        q, k = allowed.shape
        if _in_pieces(site):
            yield from _piece(site, allowed)
            continue
        if q == k:
            yield from _square(site, allowed)
        elif _is(allowed, 0) and not _is(allowed, k - q) and q < k:
            yield Finding(
                "causal-corner",
                "bug",
                f"with {q} queries and {k} keys, query 0 attends to key 0 alone: the causal mask is aligned with the "
                "upper left corner, as if the queries were the first positions; the last query should attend to all "
                f"{k} keys",
                f"align the mask with the end: query i attends to keys up to i + K - Q, tril(diagonal={k - q}) here",
                site.where_masked(site.steps_before),
            )
    yield from _window(patient)
    if not seen:
        raise NotApplicable("it makes no mask itself")


def _in_pieces(site: Site) -> bool:
    """Whether the queries are a part of the sequence and the keys all of it: attention in chunks."""
    assert site.grid is not None
    element = site.grid.element
    present = (element >= 0).flatten(0, 1).any(0).any(-1)
    own = bool((site.grid.key_inputs == 0).all())
    return not bool(present.all()) or (own and element.shape[-2] != element.shape[-1])


def _piece(site: Site, allowed: Tensor) -> Iterator[Finding]:
    """Queries of one chunk, each at its own position; the mask may wrongly treat the first of them as position 0."""
    assert site.grid is not None
    rows = torch.nonzero((site.grid.element >= 0).flatten(0, 1).any(0).any(-1))[:, 0]
    first = int(rows[0])
    if first and _is(allowed[rows], 0):
        yield Finding(
            "causal-corner",
            "bug",
            f"the query at position {first} attends to key 0 alone: the causal mask of this chunk is aligned with the "
            "upper left corner, as if its queries were the first positions",
            f"align the mask with the start of the chunk, tril(diagonal={first}) here",
            site.where_masked(site.steps_before),
            numbers={"first": float(first)},
        )


def _allowed(site: Site) -> Tensor | None:
    """[Q, K]: the allowed cells without a mask argument; None where heads or examples differ."""
    scores = site.scores
    allowed = ~(scores <= FORBIDDEN) & ~torch.isnan(scores)
    first = allowed[0, 0]
    return first if bool((allowed == first).all()) else None


def _is(allowed: Tensor, diagonal: int) -> bool:
    return bool((allowed == torch.ones_like(allowed).tril(diagonal)).all())


def _square(site: Site, allowed: Tensor) -> Iterator[Finding]:
    n = len(allowed)
    if _is(allowed, 0):
        fill = float(site.scores[0, 0][~allowed].max())
        if fill > -9e3:
            yield Finding(
                "mask-fill-too-small",
                "risk",
                f"the causal mask sets later keys to only {fill:.6g}; lower scores, or large scores nearby, outweigh "
                "it",
                "fill with -inf, or torch.finfo(dtype).min",
                site.where_masked(site.steps_before),
                numbers={"fill": fill},
            )
        return
    upper = torch.ones_like(allowed).triu
    if bool((allowed == upper(0)).all()) or bool((allowed == upper(1)).all()):
        yield Finding(
            "mask-polarity",
            "bug",
            "the module's own causal mask is reversed: every position attends to later positions and to no earlier one",
            "mask where tril is 0 (or where triu(diagonal=1) is 1)",
            site.where_masked(site.steps_before),
        )
        return
    for diagonal in range(1, n - 1):
        if _is(allowed, diagonal):
            yield Finding(
                "causal-leak",
                "bug",
                f"the causal mask lets every position attend to {diagonal} later "
                f"position{'s' if diagonal > 1 else ''}: its diagonal is {diagonal}, expected 0",
                "tril(diagonal=0), or triu(diagonal=1) for the masked cells",
                site.where_masked(site.steps_before),
                numbers={"diagonal": float(diagonal)},
            )
            return
    if _is(allowed, -1):
        yield Finding(
            "causal-leak",
            "risk",
            "the causal mask also hides every position from itself, so the first position has no allowed key",
            "tril(diagonal=0) keeps the position itself",
            site.where_masked(site.steps_before),
            numbers={"diagonal": -1.0},
        )


# Windows


def _window(patient: Patient) -> Iterator[Finding]:
    stated = _stated(patient)
    if stated is None:
        return
    name, size = stated
    length = 2 * size + 3
    if patient.interface.length or patient.interface.takes != "self" or not 1 <= size <= 64:
        return
    try:
        sites = look(patient, batch=1, length=length).sites
    except Exception as error:
        raise NotChecked(f"it does not take {length} positions: {error}") from error
    if len(sites) > 1 and not (
        patient.spec.window or hasattr(patient.module, name) or hasattr(patient.module, f"_{name}")
    ):
        return  # the windows of some layers
    for site in sites:
        allowed = None if site.grid is None else _allowed(site)
        if allowed is None or allowed.shape[0] != allowed.shape[1]:
            continue
        distance = torch.arange(length)[:, None] - torch.arange(length)
        left, right = int(distance[allowed].max()), int(-distance[allowed].min())
        if not bool((allowed == ((distance <= left) & (-distance <= right))).all()):
            continue  # not a band
        if left >= length - 1:
            if len(sites) == 1 and _claim(patient.source, name) and not patient.is_library:
                yield Finding(
                    "window-ignored",
                    "bug",
                    f"with {name} = {size} a position attends to {left} earlier positions: to all that there are",
                    "combine the window with the mask on every path (a key must be allowed by both)",
                    site.where_masked(site.steps_before),
                    numbers={"window": float(size), "left": float(left)},
                )
            continue
        yield from _judged(patient, site, name, size, left, right)


def _stated(patient: Patient) -> tuple[str, int] | None:
    if patient.spec.window is not None:
        return "left", patient.spec.window
    config = getattr(patient.module, "config", None)
    # Its own, its configuration's, those of its parts, and of plain objects that it keeps, such as what makes its mask.
    parts = [part for part in patient.module.modules() if not type(part).__module__.startswith("torch.")]
    kept = [x for part in parts for x in vars(part).values() if hasattr(x, "__dict__") and not callable(x)]
    for place in (patient.module, config, *parts, *kept):
        for name, value in vars(place).items() if hasattr(place, "__dict__") else ():
            if isinstance(value, int) and not isinstance(value, bool) and value > 0 and _WINDOW.search(name):
                return name.lstrip("_"), value
    return None


def _judged(patient: Patient, site: Site, name: str, size: int, left: int, right: int) -> Iterator[Finding]:
    sees = f"sees {left} earlier and {right} later positions" if right else f"sees itself and {left} earlier positions"
    claim = _claim(patient.source, name)
    if right and left != right:
        if {left, right} == {size // 2, size - size // 2 - 1}:
            return  # of an even size
        severity, expected = "bug", "; expected the same number on each side"
    elif right:
        halved = "//" in patient.source or "half" in patient.source
        wanted_here = {size} if claim == "neighbours" and not halved else {size, size // 2, (size - 1) // 2}
        if left in wanted_here:
            return
        listed = " or ".join(str(x) for x in sorted(wanted_here, reverse=True))
        severity, expected = "bug", f"; expected {listed} on each side"
    else:
        kind = claim or ("neighbours" if _NEIGHBOURS.search(name) else "size" if _SIZE.search(name) else "")
        wanted = {"neighbours": size, "size": size - 1}.get(kind)
        if left == wanted or (wanted is None and left == size - 1):
            return
        severity = "risk" if wanted is None and left == size else "bug"
        expected = f"; expected {size - 1 if wanted is None else wanted} earlier positions" + (
            ", as in Hugging Face's sliding_window" if wanted is None else ""
        )
    yield Finding(
        "window-off-by-one",
        severity,  # type: ignore[arg-type]
        f"with {name} = {size} a position {sees}{expected}",
        "compare with < if the window counts the position itself, with <= if it does not",
        site.where_masked(site.steps_before),
        numbers={"window": float(size), "left": float(left), "right": float(right)},
    )


# How text describes a window: "size" counts the position itself, "neighbours" does not. WINDOW stands for its name.
_COUNTS_ITSELF = (
    r"(includ\w*|counting|with) (the )?(itself|self|current|own|query)",
    r"itself (is )?(included|counted|counts)",
    r"itself and (the |its )?(\w+ ?- ?1)",
    r"last `?WINDOW (tokens|keys|positions)",
    r"total of `?WINDOW",
)
_COUNTS_OTHERS = (
    r"WINDOW(\s+\w+){0,2}\s+(previous|preceding|earlier|before it|neighbou?rs)",
    r"WINDOW(\s+\w+){0,2}\s+(to|on) (each|either|the left)",
    r"WINDOW[^,]*\b(before (it|them)|each side|either side|both sides|(to|on) (the|its) left)\b",
    r"(previous|preceding|earlier) `?WINDOW",
)


def _claim(source: str, name: str) -> str:
    """What docstrings and comments say about a window: "size", "neighbours", or "" if they say nothing."""
    words = " ".join(re.findall(r'""".*?"""|#[^\n]*', source, re.DOTALL)).lower()
    window = rf"(?<![\w.])(?:{re.escape(name.lower())}|window)`?(?!\w)"

    def says(patterns: tuple[str, ...], sentence: str) -> bool:
        return any(re.search(pattern.replace("WINDOW", window), sentence) for pattern in patterns)

    for sentence in re.split(r"[.;#]", " ".join(words.split())):
        if not re.search(window, sentence):
            continue  # about something else: "sees earlier positions only" describes causality
        if says(_COUNTS_ITSELF, sentence):
            return "size"
        if says(_COUNTS_OTHERS, sentence) and not re.search(r"- ?1", sentence):
            return "neighbours"
    return ""
