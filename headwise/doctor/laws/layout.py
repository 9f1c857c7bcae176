"""Rows of a product are tokens of one head, a softmax runs over the keys of one query, each weight meets its own value.

Every vector and every score carries the token and the head that it comes from (reading/marks.py), whatever views and
einsums led to it. So what changes along a softmax, and which weights meet which values, can be read off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.probing.listen import Dice, Softmaxes
from headwise.doctor.probing.probe import REACHED, Probe, gradients, moved, quiet, rows
from headwise.doctor.probing.reached import trainable
from headwise.doctor.reading import marks
from headwise.doctor.reading.events import pair_tokens
from headwise.doctor.reading.placement import Layout
from headwise.doctor.reading.projection_names import PLURALS, read_name
from headwise.doctor.reading.site import Site
from headwise.language import Sentence, join

FINDINGS = ("head-split", "softmax-axis", "weights-transposed", "weights-misaligned", "head-idle", "batch-mixing")

# "[batch, seq, ...]", or the batch as the first of the sizes that are unpacked; and what says the opposite.
_BATCH = r"(batch\w*|B|bs|bsz|b)"
_FIRST = re.compile(rf"[\[(] *{_BATCH} *, *\w+ *,|^ *{_BATCH} *,.*= \w+\.(shape|size)", re.M)
_SECOND = re.compile(rf"batch_first|(seq\w*|time)[- ]first|[\[(] *\w+ *, *{_BATCH} *,|^ *\w+ *, *{_BATCH} *,.*=", re.M)


def check(patient: Patient) -> Iterator[Finding]:
    yield from _said_to_be_first(patient)
    yield from _of_one_number(patient)
    sites = patient.see().sites
    for site in [site for site in sites if site.contraction is not None] or sites:  # without values: left over
        wrong = [name for name in site.projections if not site.placement(name).right]
        if wrong:
            yield from _placed(patient, site, wrong)
        elif site.layout.right or not any(x.product is site.product and x.layout.right for x in sites):
            yield from _axis(patient, site)  # unless each of two inputs attends to the other
        if site.grid is not None:
            yield from _met(patient, site)


# --- The rows of a product --------------------------------------------------------------------------------------------


def _said_to_be_first(patient: Patient) -> Iterator[Finding]:
    """A batch that is named first in a shape, where the module attends along the first dimension."""
    if not patient.interface.batched or patient.interface.batch_first:
        return
    written = "\n".join(x.__doc__ or "" for x in (type(patient.module), type(patient.module).forward))
    text = written if _FIRST.search(written) else patient.source
    first = _FIRST.search(text)
    if first is not None and not _SECOND.search(text):
        yield Finding(
            "batch-mixing",
            patient.severity("batch-mixing: said to be batch first", "bug"),
            Sentence(
                "{claim!r} says that the batch comes first, but the module attends along the first dimension, so it "
                "mixes the examples of a batch"
            ).format(claim=first.group(0).strip()),
            "pass batch_first=True to the layers it is built of, or transpose",
            patient.where,
        )


def _placed(patient: Patient, site: Site, wrong: list[str]) -> Iterator[Finding]:
    """Vectors of several heads, tokens or examples in one product."""
    placement, what = site.placement(wrong[0]), join((PLURALS[x] for x in wrong), " and ")
    listed = Sentence("positions {listed}").format(listed=", ".join(map(str, placement.tokens[:12])))
    if placement.examples:
        if not _mixes(patient):
            raise NotChecked(
                Sentence("the {what} of several examples are in one product, and stay apart all the same").format(
                    what=what
                )
            )
        name, said = (
            "batch-mixing",
            Sentence("the {what} in one product come from several examples: {listed}").format(what=what, listed=listed),
        )
        fix = "keep batch and positions separate; check batch_first and which dimensions view and reshape merge"
    elif not placement.mixed:
        name = "head-split"
        fix = "split the heads with .view(B, N, H, D).transpose(1, 2), so that positions and heads stay apart"
        said = Sentence(
            "a so-called head holds {what} of several heads, and some tokens repeatedly: {listed}; expected each "
            "position once, of a single head"
        ).format(what=what, listed=listed)
    elif placement.heads or placement.repeated or len(site.projections.get(wrong[0], ())) == 1:
        raise NotChecked(
            Sentence("the {what} are each computed from several tokens, as by a convolution").format(what=what)
        )
    else:
        return
    yield Finding(name, "bug", said, fix, site.product.where)


def _mixes(patient: Patient) -> bool:
    """Whether a change of one example reaches the outputs of others."""
    probe = Probe(patient)
    inputs = probe.inputs()
    change = rows(probe.answers(inputs), probe.output(moved(inputs, 1, queries=True)))
    return float(change[[0, 2]].amax()) > REACHED


# --- The axis of the softmax ------------------------------------------------------------------------------------------


def runs_over(layout: Layout, *, one_query: bool) -> str:
    """What changes along a softmax in the place of the keys; "" if nothing does, or if it cannot be told."""
    if layout.mixed:
        return ""
    if layout.examples and one_query:
        return "the batch"
    if layout.query_position and not layout.other_examples:
        return "queries and keys at once" if layout.key_position else "the queries"
    if layout.query_feature and not layout.key_position:
        return "the heads"
    if layout.other_examples or (layout.query_position and layout.key_position):
        return "the batch"
    return "the learned queries" if layout.repeated_keys == 1 and not layout.key_position else ""


def _axis(patient: Patient, site: Site) -> Iterator[Finding]:
    softmax, met = site.softmax, site.contraction
    if softmax.scores.shape[softmax.dims[0] if softmax.dims else 0] < 2:
        return
    position = site.query.position
    over = runs_over(site.layout, one_query=position.amin(-1).equal(position.amax(-1)))
    sums = None if met is None else met.weights.value.double().sum(-1 if met.left else -2)
    if not over or (sums is None and over == "the learned queries"):
        return
    if sums is not None and bool(((sums - 1).abs() < 1e-3).all()):
        return  # slots compete for the keys, and then each takes a mean
    if over == "the queries" and met is not None and met.side is not None and _transposed(site):
        yield Finding(
            "weights-transposed",
            "bug",
            "the weights are summed over the queries instead of the keys: they meet the values transposed",
            "multiply weights @ values, [Q, K] @ [K, E]",
            met.product.where,
        )
        return
    choose = over in ("the queries", "the learned queries")
    yield Finding(
        "softmax-axis",
        patient.severity("softmax-axis: over the queries", "bug") if choose else "bug",
        Sentence(
            "the softmax is taken over axis {axes} of scores {shape}, which is {over}; the keys are on another axis, "
            "so the weights of a query over its keys do not sum to 1"
        ).format(axes=", ".join(map(str, softmax.dims)), shape=list(softmax.scores.shape), over=over),
        "take the softmax over the axis of the keys, softmax(dim=-1) for scores [B, H, Q, K]",
        softmax.where,
    )


def _transposed(site: Site) -> bool:
    """Whether the softmax is right and the product with the values is wrong, by the names of the projections."""
    q, k = ({read_name(seed.name).letters for seed in site.projections[side]} for side in "qk")
    return q == {"k"} or k == {"q"} or (q != {"q"} and k != {"k"} and not site.queries_left)


def _of_one_number(patient: Patient) -> Iterator[Finding]:
    """A softmax over an axis of one element, beside that of the keys, as of the scores [B, K, 1] of a layer."""
    probe = Probe(patient)
    inputs = probe.inputs()
    with Softmaxes() as softmaxes:
        probe.attempt(inputs)
    sites = patient.anatomy.sites if patient.anatomy is not None else ()
    for x in softmaxes.heard:
        shape, here = list(x.scores.shape), [site for site in sites if site.softmax.where == x.where]
        met = [site.contraction for site in here if site.contraction is not None]
        of_one_value = bool(met) and all(each.weights.value.shape[-1 if each.left else -2] == 1 for each in met)
        left_over = bool(here) and not met and any(site.contraction is not None for site in sites)
        if shape[x.dim] == 1 < inputs.key_length in shape[1:] and not of_one_value and not left_over:
            yield Finding(
                "softmax-axis",
                "bug",
                Sentence(
                    "the softmax is taken over axis {axis} of scores {shape}, which has one element: every weight is "
                    "1, and the {keys} keys are on another axis"
                ).format(axis=x.dim, shape=shape, keys=inputs.key_length),
                "take the softmax over the axis of the keys: softmax(dim=1) for scores [B, K, 1]",
                x.where,
            )
            return


# --- The values that the weights meet ---------------------------------------------------------------------------------


def _met(patient: Patient, site: Site) -> Iterator[Finding]:
    """Weights of other keys than the value's, of no head's values, or of the diagonal alone."""
    offset = _offset(site)
    if offset:
        assert site.contraction is not None
        yield Finding(
            "weights-misaligned",
            "bug",
            Sentence(
                "the weight of each key is multiplied with the value of the token {count} position{s} {later}"
            ).format(
                count=abs(offset), s="s" * (abs(offset) > 1), later=Sentence("later" if offset > 0 else "earlier")
            ),
            "drop the column that was added, and no other: weights[..., :-1] if a sink was put last, weights[..., 1:] "
            "if it was put first",
            site.contraction.product.where,
        )
    given, met = site.weights.nan_to_num(0.0) > 0, _cells_that_meet(site)
    by_head = [x.any(-1).any(-1).any(0) for x in (given, met)]
    idle = (by_head[0] & ~by_head[1]).nonzero().flatten().tolist()
    own = torch.eye(*met.shape[-2:], dtype=torch.bool)
    unlearned = _heads_without_gradient(patient, site)
    idle = unlearned if unlearned is not None else idle  # heads may meet values elsewhere: then all of them learn
    if idle and bool(met.any()) and len(idle) < len(by_head[0]):
        yield Finding(
            "head-idle",
            "bug",
            Sentence(
                "{idle} of {heads} heads ({listed}) have no effect: their weights are not multiplied with values that "
                "reach the output"
            ).format(idle=len(idle), heads=len(by_head[0]), listed=", ".join(map(str, idle[:8]))),
            "multiply the weights of every head with the values of that head",
            site.softmax.where,
        )
    elif bool(met.any()) and not bool((met & ~own).any()) and bool((given & ~own).any()):
        yield Finding(
            "weights-misaligned",
            "bug",
            "only the weight that each token gives to itself is multiplied with a value: no token reads another",
            "sum over the keys: no letter of an einsum may stand twice in one operand, 'bhij,bjhd->bihd'",
            site.softmax.where,
        )


def _heads_without_gradient(patient: Patient, site: Site) -> list[int] | None:
    """The heads whose queries get no gradient from the output; None if not known. (What the module returns beside the
    output, such as its weights, may give them one.)
    """
    if not patient.reached.calls:  # it raises where gradients are recorded
        return None
    columns = site.columns("q")
    seeds = {seed.number: seed for seed in site.projections["q"]}
    probe = Probe(patient)
    wanted = trainable(probe)
    numbers = (columns >> 32).unique().tolist()
    if not all(n in seeds and seeds[n].name in wanted and wanted[seeds[n].name].ndim == 2 for n in numbers):
        return None
    with quiet(), Dice(still=True), torch.enable_grad():
        out = probe.interface.run(probe.inputs(), grad=True).output
        slopes = gradients(out, [wanted[seeds[n].name] for n in numbers]) if out.requires_grad else ()
    acts = torch.zeros(columns.shape, dtype=torch.bool)
    for n, slope in zip(numbers, slopes, strict=False):
        outputs = seeds[n].value.shape[-1]
        if slope is None or outputs not in slope.shape:
            return None
        here = columns >> 32 == n
        features = columns[here] & (1 << 32) - 1
        lines = slope.ne(0).any(1) if slope.shape[0] == outputs else slope.ne(0).any(0)
        if int(features.max()) >= outputs:
            return None
        acts[here] = lines[features]
    return (~acts.any(-1)).nonzero().flatten().tolist()


def _cells_that_meet(site: Site) -> Tensor:
    """[B, H, Q, K]: the weights that are multiplied with values by a product; without one, number by number."""
    if site.contraction is not None:
        return site.weights_at_values.isfinite()
    met = torch.zeros_like(site.weights, dtype=torch.bool)
    for step in site.trace.steps:
        inside = marks.seed_of(step.source) == site.product.number
        if step.name == "mul" and step.order > site.softmax.order and bool(inside.any()):
            met |= site.cells(torch.zeros(step.source.shape), step.source).isfinite()
    return met


def _offset(site: Site) -> int:
    """By how many positions all weights miss their values; 0 if not all by the same."""
    met = site.contraction
    if met is None or met.side is not None:
        return 0
    keys = pair_tokens(site.product, met.weights.source)[1 if site.queries_left else 0]
    values = marks.one(met.values.token, -1 if met.left else -2)
    values = (values[:, None, :] if met.left else values[:, :, None]).expand(keys.shape)
    known = (keys >= 0) & (values >= 0) & (marks.example_of(keys) == marks.example_of(values))
    apart = (marks.position_of(values) - marks.position_of(keys))[known]
    return int(apart[0]) if apart.numel() and torch.equal(apart, apart[:1].expand_as(apart)) else 0
