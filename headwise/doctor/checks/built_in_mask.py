"""The mask that a module makes itself: a causal mask of the right direction and diagonal, a window of the stated width.

Which scores are masked without a mask argument is read from the softmax's input, not inferred from outputs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import REACHED, Probe
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.events import FORBIDDEN
from headwise.doctor.reading.site import Site
from headwise.doctor.source import source_of

FINDINGS = (
    *("causal-leak", "mask-polarity", "causal-corner", "window-off-by-one", "window-ignored"),
    "mask-fill-too-small",
)

_WINDOW = re.compile(
    r"(^|_)(window|sliding|radius|local|span|lookback|look_back|band|neighbou?rs?|window_size|w|ws|win|left|context_size)(_|$|size)",
    re.IGNORECASE,
)
# These do not count the query itself, and those of _SIZE count it.
_NEIGHBOURS = re.compile(r"radius|left|look_?back|neighbou?r|n_back|band", re.IGNORECASE)
_SIZE = re.compile(r"size|sliding|width|length", re.IGNORECASE)


_TOP_LEFT = re.compile(r"(top|upper)[- ]?left( alignment|[- ]aligned)", re.IGNORECASE)


def check(patient: Patient) -> Iterator[Finding]:
    anatomy = patient.see()
    seen = inverted = False
    for site in anatomy.sites:
        if site.grid is None:
            continue
        allowed = _allowed(site)
        if allowed is not None and not bool(allowed.any()) and _all_lowered(site):
            seen = True
            yield _lowered(site)
        if allowed is None or bool(allowed.all()) or not bool(allowed.any()):
            continue
        seen = True
        q, k = allowed.shape
        if _in_pieces(site):
            yield from _piece(site, allowed)
            continue
        if q == k:
            found = list(_square(site, allowed))
            inverted |= any(x.name == "mask-polarity" for x in found)
            yield from found
        elif _is(allowed, k - q) and not _is(allowed, 0) and _TOP_LEFT.search(text_of(patient.module)):
            yield Finding(
                "causal-corner",
                "bug",
                f"its text says that the causal mask is aligned with the upper left corner; with {q} queries and {k} "
                f"keys, query 0 attends to {int(allowed[0].sum())} keys",
                "tril(diagonal=0), or correct the text",
                site.where_masked(site.steps_before),
            )
        elif _is(allowed, 0) and not _is(allowed, k - q) and q < k and not _TOP_LEFT.search(text_of(patient.module)):
            yield Finding(
                "causal-corner",
                "bug",
                f"with {q} queries and {k} keys, query 0 attends to key 0 alone: the causal mask is aligned with the "
                "upper left corner, as if the queries were the first positions; the last query should attend to all "
                f"{k} keys",
                f"align the mask with the end: query i attends to keys up to i + K - Q, tril(diagonal={k - q}) here",
                site.where_masked(site.steps_before),
            )
    if not inverted:
        yield from _window(patient)
    if not seen:
        raise NotApplicable("it makes no mask itself")


def _all_lowered(site: Site) -> bool:
    """Whether every row still has finite scores, all of them as low as masked ones, of ordinary products."""
    highest = site.scores.amax(-1)
    return bool(highest.isfinite().all()) and bool(site.products.nan_to_num().abs().max() < -FORBIDDEN / 10)


def _lowered(site: Site) -> Finding:
    lowest = float(site.scores.amax(-1).max())
    return Finding(
        "mask-polarity",
        "bug",
        f"every score is lowered to {lowest:.3g} or less, those of allowed keys too: the mask that the module makes is "
        "0 where a key is allowed, and is used as one that is 1 there",
        "make the mask in the form that is expected where it is applied: 1 and 0, or 0 and -inf",
        site.where_masked(site.steps_before),
        numbers={"highest": lowest},
    )


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
    distance = torch.arange(n)[:, None] - torch.arange(n)
    if n > 3 and _outside(allowed, distance):
        yield _only_outside(site, "")
        return
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
    if _is(allowed, -1) and not site.weight_of_constants():  # else the first query has a key of its own to look at
        first = _first_row(site)
        wrong = first is not None and (bool(first.isnan().any()) or bool((first[..., 1:] > 1e-6).any()))
        then = ", so the first position has no allowed key"
        if wrong:
            nan = bool(first.isnan().any())  # type: ignore[union-attr]
            then += ": its output is NaN" if nan else ": its weights are spread over all positions, the future included"
        yield Finding(
            "causal-leak",
            "bug" if wrong else "risk",
            f"the causal mask also hides every position from itself{then}",
            "tril(diagonal=0), or triu(diagonal=1) for the masked cells, keeps the position itself",
            site.where_masked(site.steps_before),
            numbers={"diagonal": -1.0},
        )


def _first_row(site: Site) -> Tensor | None:
    """[B, H, K]: the weights of the first query, as they meet the values."""
    return None if site.contraction is None else site.weights_at_values[:, :, 0]


# Windows


def _window(patient: Patient) -> Iterator[Finding]:
    stated = _stated(patient)
    if stated is None:
        return
    name, size, source = stated
    length = 2 * size + 3
    if patient.interface.length or patient.interface.takes != "self" or not 1 <= size <= 64:
        return
    try:
        sites = look(patient, batch=1, length=length).sites
    except Exception as error:
        raise NotChecked(f"it does not take {length} positions: {error}") from error
    own = patient.spec.window or hasattr(patient.module, name) or hasattr(patient.module, f"_{name}")
    if len(sites) > 1 and not own and _layers(patient):
        return  # the windows of some layers
    masks = [(site, None if site.grid is None else _allowed(site)) for site in sites]
    squares = [(site, x) for site, x in masks if x is not None and x.shape == (length, length)]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    both = _says_both(source) and not patient.interface.causal_claim
    for site, allowed in _sides(patient, 2 * length) if both and squares else ():
        if not _symmetric(allowed):
            yield _one_sided(site.where_masked(site.steps_before), name, size, allowed)
            return
    for site, allowed in squares:
        if bool(allowed.all()):
            continue
        if _outside(allowed, distance):
            yield _only_outside(site, f"with {name} = {size} ")
            return
        left, right = int(distance[allowed].max()), int(-distance[allowed].min())
        if not bool((allowed == ((distance <= left) & (-distance <= right))).all()):
            continue  # not a band
        if left >= length - 1:
            continue
        for finding in _judged(site.where_masked(site.steps_before), source, name, size, left, right):
            if {left, right} <= {0, size - 1, size}:
                severity = patient.severity("window-off-by-one: the other reading", finding.severity)
                finding = dataclasses.replace(finding, severity=severity)
            yield finding
    if squares and all(_is(allowed, 0) for _, allowed in squares) and len(squares) == len(sites):
        yield from _not_applied(patient, source, name, size, squares[0][0])
    elif not squares:
        yield from _by_behaviour(patient, source, name, size, distance, both=both)


def _layers(patient: Patient) -> bool:
    """Whether it has several parts of one class that is not torch's, as a stack of layers has."""
    kinds = [type(x) for x in patient.module.modules() if not type(x).__module__.startswith("torch.")]
    return len(kinds) > len(set(kinds))


def _outside(allowed: Tensor, distance: Tensor) -> bool:
    """Whether exactly a band around the diagonal is masked, the query itself included."""
    for near in range(1, len(allowed) - 1):
        outside = distance.abs() > near
        if bool((allowed == outside).all()) or bool((allowed == (outside & (distance > 0))).all()):
            return True
    return False


def _only_outside(site: Site, given: str) -> Finding:
    return Finding(
        "mask-polarity",
        "bug",
        f"{given}every position attends only to those outside of a window around it: the window's mask is inverted",
        "mask where the distance is larger than the window, and allow the rest",
        site.where_masked(site.steps_before),
    )


def _not_applied(patient: Patient, source: str, name: str, size: int, site: Site) -> Iterator[Finding]:
    """A module that masks the future by itself, and with it should mask what is outside of its window."""
    switches = [k for k in _places(patient.module) if _SWITCH.search(k[0])]
    by_layer = any(re.search(r"layer_(types?|idx|index)|max_window_layers", k) for k, _, _ in _places(patient.module))
    if not _STRONG.search(name) or any(value is False for _, value, _ in switches):
        return
    if not patient.reports("window-ignored: in every layer"):
        return
    if any(hasattr(part.__dict__.get("config"), "_attn_implementation") for part in patient.module.modules()):
        return  # the model around it makes the mask
    words = " ".join(re.findall(r'""".*?"""|#[^\n]*', source, re.DOTALL)).lower()
    said = bool(re.search(r"sliding|window|local", words)) or any(value is True for _, value, _ in switches)
    yield Finding(
        "window-ignored",
        "bug" if said and not by_layer else "risk",
        f"with {name} = {size} a position attends to {2 * size + 2} earlier positions: to all that there are",
        "apply the window on every path, with the causal mask: key > query - window",
        site.where_masked(site.steps_before),
        numbers={"window": float(size)},
    )


_BOTH = re.compile(
    r"(each|either|both) (side|direction)s?|symmetric|"
    r"(?<!norm )(?<!norms )\b(left|before) and (to the )?(right|after)\b"  # not of the norms of a block
    r"|\b(at most|up to) [^.]{0,30}away",
    re.IGNORECASE,
)


def _says_both(source: str) -> bool:
    """Whether docstrings or comments say that a window has two sides."""
    words = re.findall(r'""".*?"""|#[^\n]*', source, re.DOTALL)
    return any(_BOTH.search(" ".join(x.split())) for x in words)


def _sides(patient: Patient, length: int) -> Iterator[tuple[Site, Tensor]]:
    """The masks of so many positions that those in the middle see none of the ends."""
    for site in look(patient, batch=1, length=length).sites:
        allowed = None if site.grid is None else _allowed(site)
        if allowed is not None and allowed.shape == (length, length):
            yield site, allowed


def _symmetric(allowed: Tensor) -> bool:
    """Whether two positions see one another, or neither does; apart from those that all see, or that see all."""
    common = allowed.all(0) | allowed.all(1)
    inner = allowed[~common][:, ~common]
    return bool((inner == inner.T).all())


def _one_sided(where: Where | None, name: str, size: int, allowed: Tensor) -> Finding:
    row = len(allowed) // 2
    left, right = int(allowed[row, :row].sum()), int(allowed[row, row + 1 :].sum())
    return Finding(
        "window-off-by-one",
        "bug",
        f"with {name} = {size} position {row} of {len(allowed)} attends to {left} earlier and {right} later positions; "
        "its text says that the window has two sides",
        "compare the distance without its sign: (i - j).abs() <= window",
        where,
        numbers={"window": float(size), "left": float(left), "right": float(right)},
    )


def _by_behaviour(
    patient: Patient, source: str, name: str, size: int, distance: Tensor, *, both: bool = False
) -> Iterator[Finding]:
    """The window of code whose scores are not one square: step by step, in blocks, over gathered keys."""
    if not _STRONG.search(name) or any(
        isinstance(x, torch.nn.ModuleList) and len(x) > 1 for x in patient.module.modules()
    ):
        return
    probe = Probe(patient)
    reached = probe.influence(probe.square(1, len(distance))) > REACHED
    if both and not _symmetric(reached) and bool(reached.diagonal().all()):
        yield _one_sided(patient.where, name, size, reached)
        return
    left = int(distance[reached].max()) if bool(reached.any()) else 0
    if bool(reached[distance < 0].any()) or left == len(distance) - 1:
        return  # not causal, or no window: the first token still reaches the last
    band = (distance >= 0) & (distance <= left)
    wrong = (reached != band).any(-1)
    if not bool(wrong.any()):
        yield from _judged(None, source, name, size, left, 0)
    elif int(wrong.sum()) * 2 < len(wrong):
        row = int(torch.nonzero(wrong)[0, 0])
        yield Finding(
            "window-off-by-one",
            "bug",
            f"with {name} = {size} position {row} attends to {int(reached[row].sum())} positions, and those around it "
            f"to {int(band[row].sum())}: a window must be full before its oldest key is dropped",
            "drop a key only when there are more keys than the window holds",
            numbers={"window": float(size), "row": float(row)},
        )


_STRONG = re.compile(r"window|sliding", re.IGNORECASE)
_SWITCH = re.compile(r"(use|enable|apply|is)_?\w*(window|sliding|local)", re.IGNORECASE)


def _stated(patient: Patient) -> tuple[str, int, str] | None:
    """The attribute that states a window, its value, and the source of the class that has it."""
    text = text_of(patient.module)
    if patient.spec.window is not None:
        return "left", patient.spec.window, text
    for own in (True, False):
        for name, value, owner in _places(patient.module):
            mine = owner is patient.module or owner is getattr(patient.module, "config", None)
            if mine != own or not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                continue
            if (_WINDOW if own else _STRONG).search(name) and not re.search(r"layer", name):
                return name.lstrip("_"), value, text + ("" if own else _source(owner))
    return None


def _places(module: torch.nn.Module) -> Iterator[tuple[str, Any, Any]]:
    """The attributes of a module, its config, its parts, and the plain objects that they hold: name, value, owner."""
    for part in module.modules():
        if type(part).__module__.startswith("torch."):
            continue
        held = [x for x in vars(part).values() if hasattr(x, "__dict__") and not isinstance(x, (torch.nn.Module, type))]
        for owner in (part, *held):
            if isinstance(owner, Tensor) or (callable(owner) and owner is not part):
                continue
            for name, value in vars(owner).items():
                if isinstance(value, (int, float, str, list, tuple)):
                    yield name, value, owner


def _source(owner: Any) -> str:
    source = source_of(type(owner))
    return "" if source is None else source.text


def _judged(where: Where | None, source: str, name: str, size: int, left: int, right: int) -> Iterator[Finding]:
    sees = f"sees {left} earlier and {right} later positions" if right else f"sees itself and {left} earlier positions"
    claim = _claim(source, name)
    if right < 0 and left == size and _STRICT.search(source):
        return
    if right and left != right:
        if {left, right} == {size // 2, size - size // 2 - 1}:
            return  # of an even size
        severity, expected = "bug", "; expected the same number on each side"
    elif right:
        halved = "//" in source or "half" in source
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
        where,
        numbers={"window": float(size), "left": float(left), "right": float(right)},
    )


_STRICT = re.compile(r"\b(exclud\w+|strict\w*|(not|never) itself)\b", re.IGNORECASE)  # of the position itself
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
    r"(besides?|apart from|in addition to|not counting|excluding|without) (the )?(itself|self|current|own|query)",
)


def _claim(source: str, name: str) -> str:
    """What docstrings and comments say about a window: "size", "neighbours", or "" if they say nothing."""
    stated = [f"{name} {x.strip()}." for x in re.findall(rf"\b{re.escape(name)}\s*=[^#\n]*#([^\n]*)", source)]
    words = " ".join([*re.findall(r'""".*?"""|#[^\n]*', source, re.DOTALL), ".", *stated]).lower()
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
