"""What is added to the scores: as it is, not times their scale, and from the query and the key of each score.

The definition is softmax(scale · q kᵀ + bias). Where the scale is applied to the sum, a bias acts by a fraction of its
size. Learned numbers that are added are changed by whole numbers: then the scores must change by whole numbers, but
for one number of each row. A term that itself comes from tokens must come from these two tokens, as after
a relative shift (Dai et al. 2019) or a gather; the marks tell which tokens each term comes from.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.finding import Finding
from headwise.doctor.laws.scale import close, width_of
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.probing.probe import Probe
from headwise.doctor.reading import marks
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.events import Step, pair_tokens
from headwise.doctor.reading.scale import behind_the_product, proportion
from headwise.doctor.reading.site import Site
from headwise.language import Sentence

FINDINGS = ("wrong-scale", "scores-misaligned")


def check(patient: Patient) -> Iterator[Finding]:
    """Change what is added; compare the tokens of each term that comes from tokens."""
    anatomy = patient.see()
    names = _biases(anatomy)
    if names:
        yield from _scaled(patient, anatomy, names)
    pairs = patient.interface.way.layout == "BHWM"  # its tokens may be pairs, and a term that of the pair of two keys
    for site in anatomy.sites:
        for step in site.steps_before if site.grid is not None else ():
            yield from _unscaled(site, step)
            foreign = None if pairs else foreign_tokens(site, step)
            if foreign is not None:
                if patient.example is None and _takes_other_rows(patient):
                    raise NotChecked("its positions were made up, and it takes other numbers of them as well")
                yield _misaligned(site, step, foreign)
                return


def _takes_other_rows(patient: Patient) -> bool:
    """Whether the module runs with one row of positions less, or one more, than those that were made up for it."""
    probe, interface = Probe(patient), patient.interface
    inputs = probe.inputs()
    for name, make in interface.way.extras if patient.example is None else ():
        rows = make(interface.way.sizes(inputs)) if interface.roles.get(name) == "positions" else None
        if rows is None:
            continue
        if not isinstance(rows, Tensor) or rows.ndim < 2 or (rows.ndim == 2 and len(rows) == len(inputs.query)):
            return True
        for other in (rows[..., :-1, :], torch.cat([rows, rows[..., -1:, :]], -2)):
            if isinstance(probe.attempt(inputs, given={name: other}), Tensor):
                return True
    return False


# --- Biases -----------------------------------------------------------------------------------------------------------


def _biases(anatomy: Anatomy) -> set[str]:
    """The names of parameters that are added to scores, and multiplied with nothing."""
    multiplied = {name for seed in anatomy.run.seeds if seed.left is not None for name in seed.name.split(", ")}
    steps = (step for site in anatomy.sites for step in site.steps_before if step.name == "add")
    return {name for step in steps if step.names.isdisjoint(multiplied) for name in step.names}


def _scaled(patient: Patient, anatomy: Anatomy, names: set[str]) -> Iterator[Finding]:
    def change(module: nn.Module) -> None:
        with torch.no_grad():
            for name, x in module.named_parameters():
                if name in names:
                    x.add_(torch.randint(0, 4, x.shape, generator=torch.Generator().manual_seed(1)).to(x))

    twins, changed = anatomy.again, look(patient, change=change).sites
    if twins is None or len(changed) != len(twins):
        return
    for a, twin, b in zip(anatomy.sites, twins, changed, strict=True):
        scale = behind_the_product(a, twin)
        if scale is None or close(scale, 1.0) or a.grid is None or b.grid is None or a.scores.shape != b.scores.shape:
            continue
        risen = (b.scores - a.scores) - scale * (b.products - a.products)
        if rises_by(risen, 1.0) or not rises_by(risen, scale):
            continue
        yield Finding(
            "wrong-scale",
            patient.severity("wrong-scale: of a bias", "bug"),
            Sentence(
                "{names} is added to the products of queries and keys, and multiplied by {scale:.4f}, their scale, "
                "with them; it should be added to the scaled scores as it is"
            ).format(names=" and ".join(sorted(names)), scale=scale),
            "scale q kᵀ first, then add the bias: softmax(q @ k.mT * scale + bias)",
            next((x.where for x in a.steps_before if x.name == "add"), a.softmax.where),
        )
        return


def rises_by(change: Tensor, unit: float) -> bool:
    """Whether a change of scores [B, H, Q, K] is whole numbers of this unit, but for one number of each row; False if
    it changes nothing. NaN and infinite cells do not count.
    """
    seen = change.isfinite() & (change.abs() < 1e3)
    first = change.gather(-1, seen.float().argmax(-1, keepdim=True))
    units = ((change - first) / unit)[seen & first.isfinite()]
    return units.numel() > 3 and bool((units.abs() > 0.5).any()) and bool(((units - units.round()).abs() < 1e-2).all())


# --- Terms of tokens --------------------------------------------------------------------------------------------------


def _unscaled(site: Site, step: Step) -> Iterator[Finding]:
    """A product of queries (or keys) with learned positions, added to scores that are scaled, without their scale."""
    factors: dict[int, float | None] = {}
    for term, value in zip(step.terms, step.arguments, strict=False):
        seed = site.trace.seed(max(term.seeds())) if term.seeds() else None
        if seed is None or seed.left is None or not isinstance(value, Tensor) or value.shape != term.source.shape:
            continue
        if seed is site.product or (seed.kind == "projection" and seed.left.value.shape[-1] == width_of(site)):
            inside = marks.seed_of(term.source) == seed.number
            product = seed.value.double().flatten()[marks.element_of(term.source[inside])]
            factors[seed.number] = proportion(product, value.double()[inside])
    scale = factors.pop(site.product.number, None)
    if (
        scale is not None
        and close(scale, width_of(site) ** -0.5)
        and any(x and close(x, 1.0) for x in factors.values())
    ):
        yield Finding(
            "wrong-scale",
            "risk",
            Sentence(
                "products of queries and keys are multiplied by {scale:.4f}, and products of the same width with "
                "learned positions are added to them as they are: they are larger by its inverse"
            ).format(scale=scale),
            "scale the sum of all products: (q @ k.mT + q @ p.mT) / sqrt(head width)",
            step.where,
        )


def foreign_tokens(site: Site, step: Step) -> Tensor | None:
    """For each score, the token that a term comes from, if it is neither its query nor its key and no mask hides the
    score; else -1. None if there are none.
    """
    shape, cells = step.source.shape, pair_tokens(site.product, step.source)
    sides = tuple(zip(cells, "qk" if site.queries_left else "kq", strict=True))
    for term in step.terms:
        if site.product.number in term.seeds() or term.source.ndim > len(shape):
            continue
        visible = _visible(site, step.source) & (cells[0] >= 0) & (cells[1] >= 0)
        found = torch.full(shape, marks.UNKNOWN)
        for number in term.seeds():
            of = _projection(site, number)
            for token in _tokens(site, number, term.source.expand(shape), term.token.expand(shape)):
                inputs = [marks.input_of(x) for x in (token, *cells)]
                comparable = visible & (token >= 0) & ((inputs[0] == inputs[1]) | (inputs[0] == inputs[2]))
                own = torch.stack([token == x for x, name in sides if of in (None, name)]).any(0)
                found = torch.where(comparable & ~own, token, found)
        if bool((found >= 0).any()):
            return found
    return None


def _tokens(site: Site, number: int, source: Tensor, token: Tensor) -> tuple[Tensor, ...]:
    """The tokens of each element; those of row and column, where a seed is a product of two that depend on inputs."""
    seed = site.trace.seed(number)
    if seed.left is not None and seed.right is not None and seed.left.live and seed.right.live:
        return pair_tokens(seed, source)
    return (token.masked_fill(marks.seed_of(source) != number, marks.UNKNOWN),)


def _projection(site: Site, number: int) -> str | None:
    """Whether a seed is a product of the projected queries ("q") or keys ("k") with constants; None if of neither, or
    if they share a projection.
    """
    seed = site.trace.seed(number)
    if seed.left is None or seed.right is None or seed.left.live == seed.right.live:
        return None
    live = seed.left if seed.left.live else seed.right
    origins = set(marks.seed_of(live.source).unique().tolist())
    owned = {name: {x.number for x in site.projections[name]} for name in "qk"}
    if owned["q"] & owned["k"] or -1 in origins:
        return None
    return next((name for name, numbers in owned.items() if origins <= numbers), None)


def _visible(site: Site, source: Tensor) -> Tensor:
    """Whether the score with this source has a weight: cells that a mask hides may hold anything."""
    number, softmax = site.product.number, site.softmax
    inside = marks.seed_of(softmax.source) == number
    weights = torch.zeros(site.product.value.numel())
    weights[marks.element_of(softmax.source[inside])] = softmax.weights[inside].float().nan_to_num(0.0)
    here = marks.seed_of(source) == number
    return here & (weights[marks.element_of(source).clamp(min=0).masked_fill(~here, 0)] > 0)


def _misaligned(site: Site, step: Step, foreign: Tensor) -> Finding:
    cells = pair_tokens(site.product, step.source)
    place = (foreign >= 0).nonzero()[0].unbind()
    query, key, other = (
        int(marks.position_of(x[place])) for x in (*(cells if site.queries_left else cells[::-1]), foreign)
    )
    return Finding(
        "scores-misaligned",
        "bug",
        Sentence(
            "what is added to the score of query {query} and key {key} comes from token {other}: {scores} scores get a "
            "term of a token that is neither their query nor their key"
        ).format(query=query, key=key, other=other, scores=int((foreign >= 0).sum())),
        "check the shift: each row must keep its own query (pad one column, view with one row more, drop the first), "
        "and keys after the query need positions of their own, 2 N - 1 in all",
        step.where,
    )
