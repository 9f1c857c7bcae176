"""Scores are products of queries and keys, times 1 / sqrt(head width), unless another factor is intended.

The factor is measured, not read from the code: two forwards with other inputs give differences of scores and of
products in a fixed ratio, whatever was biased or masked, and whether the queries, the keys or the scores were scaled.
A wrong one is a bug if it is a known function of a width, also in a second construction with another number of heads.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from headwise.doctor.calling import names
from headwise.doctor.calling.claims import text_of_all
from headwise.doctor.finding import Finding, Severity, Where
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.probing.reached import stir
from headwise.doctor.reading import marks
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.scale import measure
from headwise.doctor.reading.site import Site
from headwise.language import Sentence, join

FINDINGS = ("wrong-scale", "t5-scaled")

# What code says of itself: it is scaled in another way, or a weight holds the scale.
_MEANT = re.compile(r"\bmup\b|maximal update|(un|not )scaled|full width|folded", re.IGNORECASE)
_SHARES = {"a quarter of": 0.25, "half": 0.5, "twice": 2.0}


def check(patient: Patient) -> Iterator[Finding]:
    """Measure the factor of each attention, and judge it."""
    measured = list(factors(patient))
    if not measured:
        raise NotChecked("the scores are not a multiple of the products of queries and keys")
    for site, factor in measured:
        at_this_line = [x for other, x in measured if other.product.where == site.product.where]
        if all(close(x, factor) for x in at_this_line):  # a factor for each layer is meant
            yield from _judge(patient, site, factor)


def factors(patient: Patient) -> Iterator[tuple[Site, float]]:
    """Yield each attention whose scores are a multiple of its products, and the factor."""
    anatomy = patient.see()
    if anatomy.again is None:
        raise NotChecked("two forwards of the module took different code paths")
    for i, (site, twin) in enumerate(zip(anatomy.sites, anatomy.again, strict=True)):
        if site.sources.unique().numel() < site.sources.numel():  # sums of numbers of queries and of keys have no scale
            continue
        factor = measure(site, twin)
        if factor is None:
            factor = _by_keys(patient, site, i)
        if factor is not None:
            yield site, factor


def _by_keys(patient: Patient, site: Site, number: int) -> float | None:
    """The factor if the scores depend on the inputs in other ways too, such as relative positions: only the weight of
    the keys is changed, so that the change of the scores comes from it.
    """
    q, k = ({seed.name for seed in site.projections[name] if seed.name} for name in "qk")

    def change(module: nn.Module) -> None:
        stir(x for name, x in module.named_parameters() if name in k - q)

    sites = look(patient, change=change).sites if k - q else ()
    return measure(site, sites[number]) if len(sites) == len(patient.see().sites) else None


def _judge(patient: Patient, site: Site, factor: float) -> Iterator[Finding]:
    width, temperature, t5 = width_of(site), _temperature(patient), _name_of_t5(patient)
    expected = patient.spec.scale or width**-0.5 * temperature**2
    name = "wrong-scale"
    severity: Severity | None = "bug"
    if close(factor, expected):
        if not t5 or not _biased(site) or patient.spec.scale or not patient.reports("t5-scaled: beside a T5 bias"):
            return
        name, fix = "t5-scaled", "leave the scores unscaled (scale = 1)"
        said = Sentence(
            "the scores are divided by {divisor:.3f} = sqrt({head_width}), but it is a {t5}, with a bias: T5 does not "
            "scale its scores (its initialisation does), so weights trained for one do not work in the other"
        ).format(divisor=1 / factor, head_width=width, t5=t5)
    elif close(factor, 1.0) and (t5 or _biased(site) or not patient.reports("wrong-scale: none")):
        return
    else:
        words = next(iter(rules(patient, site, factor).values()), "which is not a power of any width here")
        if temperature > 1 and close(factor * temperature**2, expected):
            words = "without the temperature of mscale_all_dim that its configuration states"
            severity = patient.severity("wrong-scale: without YaRN's temperature", "bug")
        else:
            severity = _severity(patient, site, factor)
        if close(factor, 1.0):
            did: str = Sentence("not scaled")
        elif abs(factor) < 1:
            did = Sentence("divided by {divisor:.3f}").format(divisor=1 / factor)
        else:
            did = Sentence("multiplied by {factor:.3f}").format(factor=factor)
        did = join(filter(None, (did, words)))
        said = Sentence(
            "scores are {did}; the head width is {head_width}, expected a division by {expected:.3f}"
        ).format(did=did, head_width=width, expected=1 / expected)
        fix = Sentence("divide the scores by sqrt(head width) = {divisor:.3f}, once").format(divisor=1 / expected)
    if severity is not None:
        yield Finding(name, severity, said, fix, _where(site, factor))


def _severity(patient: Patient, site: Site, factor: float) -> Severity | None:
    """The severity of a wrong factor; None if it is intended."""
    known = bool(rules(patient, site, factor))
    released = any(type(part).__name__ == "MAB" for part in patient.module.modules())
    meant = _MEANT.search(text_of_all(patient.module)) is not None
    if released or meant or _learned(site):  # Set Transformer's divides by the whole width
        return "note"
    if _is_stated(patient, factor):
        return None
    if _normed(site):  # cosines have a factor of their own
        return "note" if known else None
    if not known:  # a head of several parts may have a temperature
        return "risk" if max(len(site.projections[name]) for name in "qk") == 1 else None
    projected = (any(x.kind == "projection" and x.right is not None for x in site.projections[name]) for name in "qk")
    if close(factor, 1.0) and not all(projected):
        return "risk"  # Luong's attention is not scaled, nor is one bilinear form, or attention over images
    return patient.severity("wrong-scale: of the scores", "bug" if _holds_again(patient, factor, site) else "risk")


def width_of(site: Site) -> int:
    """Return the number of features that a query and a key are multiplied by."""
    left = site.product.left
    assert left is not None
    return left.value.shape[-1]


def close(a: float, b: float) -> bool:
    """Whether two factors are the same."""
    return math.isclose(a, b, rel_tol=2e-3)


# --- Which function of a width it is ----------------------------------------------------------------------------------


def rules(patient: Patient, site: Site, factor: float) -> dict[str, str]:
    """What a wrong factor is of the sizes here, in every way that fits, without and with numbers."""
    n, m = (1, *site.product.value.shape)[-2:]
    batch, _, model = patient.see().inputs.query.shape
    width = width_of(site)
    heads = len(site.grid.heads) if site.grid is not None else max(model // width, 1)
    widths = {"head width": width, "model width": model}
    sizes = widths | {"width of all heads": heads * width, "number of heads": heads, "number of keys": m}
    sizes |= {"number of queries": n, "batch size": batch}
    table = {"": 1.0}
    for name, size in sizes.items():
        table[Sentence("which is sqrt({size}), the {name}").format(size=size, name=name)] = size**-0.5
    for name, size in widths.items():
        for words, value in (
            ("which is sqrt({size}), the {name}: multiplied instead of divided", size**0.5),
            ("which is {size}, the {name}: multiplied instead of divided", float(size)),
            ("which is {size}, the {name} without the square root (or the scale applied twice)", 1 / size),
            ("the fourth root of the {name}: only queries or only keys are scaled", size**-0.25),
        ):
            table[Sentence(words).format(size=size, name=name)] = value
    table[Sentence("which is {m}, the number of keys").format(m=m)] = 1 / m
    for words, share in _SHARES.items():
        told = Sentence("which is the square root of {share} the head width").format(share=Sentence(words))
        table[told] = (share * width) ** -0.5
    return {re.sub(r"\d", "", words): words for words, value in table.items() if close(factor, value)}


def _holds_again(patient: Patient, factor: float, site: Site) -> bool:
    """Whether the scale is also wrong, and by the same rule, with another number of heads and another head width.

    If neither can be changed nobody can tell: then a whole size is no coincidence, and a part of one may be.
    """
    arguments = inspect.signature(type(patient.module).__init__).parameters
    here, told = rules(patient, site, factor).keys(), False
    sizes = ((names.HEADS, 0 if site.grid is None else len(site.grid.heads)), (names.HEAD_DIMS, width_of(site)))
    for known, size in sizes if patient.make is not None else ():
        name = next((x for x in arguments if names.simple(x) in known), None)
        if name is None or not size:
            continue
        for other in (2 * size, size // 2):
            try:
                module = patient.rebuild(**{name: other})
                assert module is not None
                twin = Patient(module, spec=patient.spec)
                measured = list(factors(twin))
            except Exception:  # whatever a constructor raises for sizes that do not fit
                continue
            if measured and here.isdisjoint(rule for each in measured for rule in rules(twin, *each)):
                return False
            told = True
            break
    return told or any("square root of" not in rule for rule in here)


# --- What may be meant ------------------------------------------------------------------------------------------------


def _temperature(patient: Patient) -> float:
    """YaRN's temperature of all features, 0.1 mscale_all_dim ln(factor) + 1, if a configuration states it; else 1."""
    for part in patient.module.modules():
        for holder in (part, getattr(part, "config", None)):
            for name in ("rope_scaling", "rope_parameters"):
                entry = getattr(holder, name, None)
                if isinstance(entry, Mapping) and entry.get("mscale_all_dim") and (entry.get("factor") or 0) > 1:
                    return 0.1 * float(entry["mscale_all_dim"]) * math.log(entry["factor"]) + 1
    return 1.0


def _name_of_t5(patient: Patient) -> str:
    kinds = [x.__name__ for part in patient.module.modules() for x in type(part).__mro__[:-1]]
    return next((x for x in kinds if "t5" in x.lower() and "bias" not in x.lower() and "posit" not in x.lower()), "")


def _biased(site: Site) -> bool:
    """Whether learned numbers of no token are added to the scores, as T5's by distance."""
    return any(step.name == "add" and step.names and not step.noise for step in site.steps_before)


def _learned(site: Site) -> bool:
    """Whether a learned number (one, or one per head; not one per feature, as in norms) multiplies the scores."""
    made = {site.product.number, *(seed.number for name in ("q", "k") for seed in site.projections[name])}
    return any(
        step.order < site.softmax.order
        and step.name in ("mul", "div")
        and bool(step.names)
        and any(isinstance(x, Tensor) and x.shape[-1:] in ((), (1,)) for x in step.arguments)
        and not made.isdisjoint(marks.seed_of(step.source).unique().tolist())
        for step in site.trace.steps
    )


def _is_stated(patient: Patient, factor: float) -> bool:
    """Whether exactly this number was chosen by an argument of a constructor, or a switch is off."""
    for part in patient.module.modules():
        arguments = inspect.signature(type(part).__init__).parameters
        stated = {name: getattr(part, name, argument.default) for name, argument in arguments.items()}
        config = getattr(part, "config", getattr(part, "cfg", None))
        stated |= {name: getattr(config, name, None) for name in ("query_pre_attn_scalar", "attention_multiplier")}
        for name, value in stated.items():
            if not any(word in name for word in ("scal", "mult", "temper")):
                continue
            if value is False and close(factor, 1.0):
                return True
            if isinstance(value, (int, float)) and value > 0 and any(close(factor, value**x) for x in (1, -0.5, -1)):
                return True
    return False


def _normed(site: Site) -> bool:
    """Whether the norm of queries or keys differs from that of their projection."""
    for name in ("q", "k"):
        learned = any(seed.kind in ("product", "parameter") for seed in site.projections[name])
        raw = None if learned or site.grid is None else site.raw(name)
        if raw is not None:
            ratio = (site.q if name == "q" else site.k).double().norm(dim=-1) / raw.norm(dim=-1)
            if bool(((ratio - ratio.mean()).abs() > 1e-2 * ratio.mean()).any()):
                return True
    return False


def _where(site: Site, factor: float) -> Where | None:
    """The multiplication or division that applies the factor, if it can be identified; else the product."""
    powers = [abs(factor) ** x for x in (1, -1, 0.5, -0.5)]
    for step in site.trace.steps:
        if step.order < site.softmax.order and step.name in ("mul", "div"):
            for x in step.arguments[1:2]:
                number = abs(float(x)) if not isinstance(x, Tensor) or x.numel() == 1 else 0.0
                if any(close(number, y) for y in powers):
                    return step.where
    return site.product.where
