"""The factor between q kᵀ and the softmax: 1 / sqrt(head width), unless another one is intended.

It is measured, not read from the code: two forwards with other inputs give differences of scores and of products in a
fixed ratio, whatever was biased or masked, and whether the queries, the keys or the scores were scaled.
"""

from __future__ import annotations

import dataclasses
import inspect
import linecache
import math
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.calling import sizes
from headwise.doctor.finding import Finding, Severity, Where
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.reading import marks
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.documents import documents
from headwise.doctor.reading.scale import measure
from headwise.doctor.reading.site import Site
from headwise.doctor.reading.yarn import Temperatures, temperatures
from headwise.doctor.source import source_of

FINDINGS = ("wrong-scale", "t5-scaled", "mscale-twice")

_TOLERANCE = 2e-3


def check(patient: Patient) -> Iterator[Finding]:
    anatomy = patient.see()
    if anatomy.again is None:
        raise NotChecked("two forwards of the module took different code paths")
    measured = 0
    for site, twin in zip(map(_along_keys, anatomy.sites), map(_along_keys, anatomy.again), strict=True):
        if site.sources.unique().numel() < site.sources.numel():  # sums of numbers of queries and of keys have no scale
            continue
        if site.grid is None or twin.grid is None or site.grid.element.shape != twin.grid.element.shape:
            continue
        factor = measure(site, twin)
        if factor is None:
            factor = _measure_by_keys(patient, anatomy, site)
        if factor is None:
            continue
        measured += 1
        yield from _judge(patient, anatomy, site, factor)
    if not measured:
        raise NotChecked("the scores are not a multiple of the products of queries and keys")


def _along_keys(site: Site) -> Site:
    """A site whose softmax is over a wrong axis, read as if it were over the keys: its scale may be wrong, too."""
    dims = ((dim,) for dim in range(site.softmax.scores.ndim) if site.grid is None)
    others = (Site(site.trace, dataclasses.replace(site.softmax, dims=each), site.product) for each in dims)
    return next((other for other in others if other.grid is not None), site)


def _number(anatomy: Anatomy, site: Site) -> int:
    return next(i for i, each in enumerate(anatomy.sites) if each.softmax.order == site.softmax.order)


def _measure_by_keys(patient: Patient, anatomy: Anatomy, site: Site) -> float | None:
    """The factor if the scores depend on the inputs in other ways too, such as relative positions: only the weight of
    the keys is changed, so that the change of the scores comes from it.
    """
    names = {name: {seed.name for seed in site.projections[name] if seed.name} for name in "qk"}
    alone = names["k"] - names["q"]
    if not alone:
        return None

    def change(module: nn.Module) -> None:
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in alone:
                    parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter) * parameter.std())

    sites = look(patient, change=change).sites
    at = _number(anatomy, site)
    if len(sites) != len(anatomy.sites) or sites[at].grid is None or sites[at].scores.shape != site.scores.shape:
        return None
    return measure(site, sites[at])


def _normed(site: Site) -> bool:
    """Whether the norm of queries or keys differs from that of their projection."""
    for name in ("q", "k"):
        learned = any(seed.kind in ("product", "parameter") for seed in site.projections[name])
        raw = None if learned else site.raw(name)
        if raw is not None:
            ratio = (site.q if name == "q" else site.k).double().norm(dim=-1) / raw.norm(dim=-1)
            if bool(((ratio - ratio.mean()).abs() > 1e-2 * ratio.mean()).any()):
                return True
    return False


def _judge(patient: Patient, anatomy: Anatomy, site: Site, factor: float) -> Iterator[Finding]:
    width = site.q.shape[-1]
    expected = patient.spec.scale or width**-0.5
    latent = _latent(patient, site)
    if latent is not None:
        found = _cooled(patient, site, factor, expected, latent)
        if found is not None or _close(factor, expected * latent.all_dim**2):
            patient.excused.add("wrong-scale")
            yield from () if found is None else (found,)
            return
    if _close(factor, expected):
        if patient.spec.scale is None and _is_t5(patient, site) and patient.reports("t5-scaled: beside a T5 bias"):
            yield Finding(
                "t5-scaled",
                "bug" if _says_t5(patient) else "risk",  # others use its bias with scaled scores
                f"the scores are divided by {1 / factor:.3f} = sqrt({width}), but there is a T5 bias: T5 does not "
                "scale its scores (its initialisation does), so weights trained for one do not work in the other",
                "leave the scores unscaled (scale = 1)",
                _where(site, factor),
                numbers={"scale": factor, "expected": 1.0},
            )
        return
    if _close(factor, 1.0) and (_is_t5(patient, site) or _says_t5(patient) or not patient.reports("wrong-scale: none")):
        patient.excused.add("wrong-scale")
        return
    numbers = {"scale": factor, "expected": expected, "head_width": float(width)}
    stretch = yarn_stretch(patient)
    if stretch is not None:
        if _close(factor, expected * stretch**2):
            patient.excused.add("wrong-scale")
            return
        if _close(factor, expected * stretch**4):
            yield Finding(
                "mscale-twice",
                "bug",
                f"the scores are multiplied by {factor:.4f} = mscale^4 / sqrt({width}) with mscale = {stretch:.4f}; "
                f"YaRN's mscale^2 must be applied once, expected {expected * stretch**2:.4f}",
                "apply mscale to the scale or to cos and sin, not to both",
                _where(site, factor),
                numbers=numbers,
            )
            return
    known = _known(patient, anatomy, site, factor)
    severity, words = _severity(patient, site, factor, known)
    if severity != "bug":
        patient.excused.add("wrong-scale")
    if not severity:
        return
    did = f"divided by {1 / factor:.3f}" if abs(factor) < 1 else f"multiplied by {factor:.3f}"
    if _close(factor, 1.0):
        did = "not scaled"
    yield Finding(
        "wrong-scale",
        severity,
        f"scores are {did}{', ' + words if words else ''}; the head width is {width}, expected a division by "
        f"{1 / expected:.3f}",
        f"divide the scores by sqrt(head width) = {1 / expected:.3f}, once",
        _where(site, factor),
        numbers=numbers,
    )


def _latent(patient: Patient, site: Site) -> Temperatures | None:
    """YaRN's temperatures for a head of several parts, if they are stated."""
    parts = max(len(site.projections[name]) for name in "qk")
    return temperatures(patient) if parts > 1 and patient.spec.scale is None else None


def _cooled(patient: Patient, site: Site, factor: float, expected: float, latent: Temperatures) -> Finding | None:
    """A scale without YaRN's temperature, or with another one than that of all features."""
    right = expected * latent.all_dim**2
    wrong = {expected: "without", expected * latent.rotated**2: "by mscale instead of"}
    words = next((words for value, words in wrong.items() if _close(factor, value)), None)
    if words is None or _close(factor, right):
        return None
    return Finding(
        "wrong-scale",
        patient.severity("wrong-scale: without YaRN's temperature", "bug" if latent.kept else "risk"),
        f"the scores are multiplied by {factor:.4f}, {words} the temperature of mscale_all_dim that its configuration "
        f"states; expected {latent.all_dim:.4f}^2 / sqrt({site.q.shape[-1]}) = {right:.4f}"
        + ("" if latent.kept else ", if the configuration written in its code is used"),
        "multiply the scale by (0.1 * mscale_all_dim * log(factor) + 1) ** 2",
        _where(site, factor),
        numbers={"scale": factor, "expected": right, "head_width": float(site.q.shape[-1])},
    )


def _severity(patient: Patient, site: Site, factor: float, known: str | None) -> tuple[Severity | None, str]:
    """The severity of a wrong factor (None: it is intended), and a description."""
    text = "\n".join((patient.source, *documents(patient.module), _text_around(patient, site)))
    if _learned(site) or re.search(
        r"mup|μp|maximal update|(un|not |isn't |are not )scaled|no scal|without (the )?scal|\bfolded\b|fold_scal"
        r"|sqrt\(\w+\)[^.]*\b(part of|inside|into)\b",
        text,
        re.IGNORECASE,
    ):
        return "note", known or ""
    released = any(type(part).__name__ == "MAB" and hasattr(part, "dim_V") for part in patient.module.modules())
    if _is_meant(site) or released:  # Set Transformer's release divides by the root of the whole width
        return "note", known or ""
    if (
        _is_stated(patient, factor)
        or _is_told(patient, factor * site.q.shape[-1] ** 0.5)
        or _falls_with_the_layer(patient, site, factor)
    ):
        return None, ""
    if known is None:
        return (None if _normed(site) else "risk"), "which is not a power of any width here"
    if _normed(site):
        return "note" if _gained(site) else "risk", f"{known}; queries or keys are normalised".removeprefix("; ")
    if _close(factor, 1.0):
        # Luong's attention is not scaled, neither that of products nor that of one bilinear form, nor is attention over
        # images with convolutional projections (Zhang et al. 2018).
        convolved = any(
            seed.kind == "projection" and seed.left is not None and seed.right is None for seed in site.projections["q"]
        )
        plain = not _both_projected(site) and "scaled" not in (type(patient.module).__name__ + text).lower()
        if convolved or plain:
            return "risk", known
    return patient.severity("wrong-scale: of the scores", "bug"), known


def _text_around(patient: Patient, site: Site) -> str:
    """The text of the class of the part that multiplies queries and keys."""
    where = site.product.where
    for kind in dict.fromkeys(type(part) for part in patient.module.modules()):
        source = source_of(kind)
        if source and where and source.file == where.file and source.line <= where.line < source.end:
            return source.text
    return ""


def _falls_with_the_layer(patient: Patient, site: Site, factor: float) -> bool:
    """Whether the layers divide their scores by 1, 2, 3, ... beside the head width, as GPT-2 may."""
    number = _number(patient.see(), site)
    return number > 0 and _close(factor * (number + 1), site.q.shape[-1] ** -0.5)


def _known(patient: Patient, anatomy: Anatomy, site: Site, factor: float) -> str | None:
    """A description of a wrong factor; None if it is not a known one."""
    width = site.q.shape[-1]
    queries, keys = site.scores.shape[-2:]
    heads = len(site.grid.heads) if site.grid is not None else 1
    model = anatomy.inputs.query.shape[-1]
    table = [
        (1.0, ""),
        (model**-0.5, f"which is sqrt({model}), the model width"),
        ((heads * width) ** -0.5, f"which is sqrt({heads * width}), the width of all heads"),
        (width**0.5, f"which is sqrt({width}): multiplied instead of divided"),
        (1 / width, f"which is {width}, the head width without the square root (or the scale applied twice)"),
        (model**0.5, f"which is sqrt({model}), the model width: multiplied instead of divided"),
        (1 / model, f"which is {model}, the model width without the square root"),
        (width**-0.25, "the fourth root of the head width: only queries or only keys are scaled"),
        (heads**-0.5, f"which is sqrt({heads}), the number of heads"),
        (keys**-0.5, f"which is sqrt({keys}), the number of keys"),
        (queries**-0.5, f"which is sqrt({queries}), the number of queries"),
        (1 / keys, f"which is {keys}, the number of keys"),
        (float(width), f"which is {width}, the head width: multiplied instead of divided"),
        (2 * width**-0.5, f"which is sqrt({width}) / 2"),
        ((2 * width) ** -0.5, f"which is sqrt({2 * width}), twice the head width"),
        ((width / 2) ** -0.5, f"which is sqrt({width // 2}), half the head width"),
        (model**-0.25, "the fourth root of the model width"),
        (len(anatomy.inputs.query) ** -0.5, "the square root of the batch size"),
        (width**-1.5, f"which is {width} sqrt({width}): scaled twice"),
    ]
    return next((words for value, words in table if _close(factor, value)), None)


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_TOLERANCE)


def _where(site: Site, factor: float) -> Where | None:
    """The multiplication or division that applies the factor, if it can be identified; else the product."""
    for step in site.trace.steps:
        if step.order < site.softmax.order and step.name in ("mul", "div"):
            for x in step.arguments[1:2]:
                number = float(x) if isinstance(x, (int, float)) or (isinstance(x, Tensor) and x.numel() == 1) else 0.0
                if number and any(
                    _close(abs(number), abs(y)) for y in (factor, 1 / factor, abs(factor) ** 0.5, abs(factor) ** -0.5)
                ):
                    return step.where
    return site.product.where


def _both_projected(site: Site) -> bool:
    return all(any(seed.kind == "projection" for seed in site.projections[name]) for name in ("q", "k"))


def _learned(site: Site) -> bool:
    """Whether a learned number (one, or one per head; not one per feature, as in norms) multiplies the scores."""
    made = {site.product.number, *(seed.number for name in ("q", "k") for seed in site.projections[name])}
    for step in site.trace.steps:
        if step.order < site.softmax.order and step.name in ("mul", "div") and step.names:
            if made.isdisjoint(marks.seed_of(step.source).unique().tolist()):
                continue
            others = [x.shape for x in step.arguments if isinstance(x, Tensor)]
            if any(shape[-1:] in ((), (1,)) for shape in others):
                return True
    return False


def _gained(site: Site) -> bool:
    """Whether learned numbers, one per feature, multiply queries and keys: so the scale is learned."""
    return all(
        any(
            step.order < site.product.order
            and step.name == "mul"
            and step.names
            and {seed.number for seed in site.projections[name]} & set(marks.seed_of(step.source).unique().tolist())
            and any(isinstance(x, Tensor) and x.shape[-1:] == site.q.shape[-1:] for x in step.arguments)
            for step in site.trace.steps
        )
        for name in ("q", "k")
    )


def _is_stated(patient: Patient, factor: float) -> bool:
    """Whether exactly this number was chosen: in a configuration, or as a constructor argument."""
    for part in patient.module.modules():
        arguments = inspect.signature(type(part).__init__).parameters
        for name in ("scale", "softmax_scale", "scaling", "attn_scale", "qk_scale", "sm_scale"):
            value = getattr(part, name, None)
            if name in arguments and isinstance(value, (int, float)) and _close(factor, value):
                return True
    if _close(factor, 1.0) and any(
        vars(part).get(name) is False
        for part in patient.module.modules()
        for name in ("scaling", "use_scale", "scaled")
    ):
        return True  # a switch, which is off
    defaults = inspect.signature(type(patient.module).__init__).parameters
    for name in ("query_pre_attn_scalar", "attention_multiplier", "attn_scale", "attention_scale", "softmax_scale"):
        # A module computes its softmax_scale itself; only a configuration states one. (Arguments were asked above.)
        places = [x for x in sizes.places(patient.module) if not (isinstance(x, nn.Module) and name.endswith("_scale"))]
        values = [getattr(place, name, None) for place in places]
        for value in (*values, defaults[name].default if name in defaults else None):
            if not isinstance(value, (int, float)) or value <= 0:
                continue
            if any(_close(factor, x) for x in (value, value**-0.5, 1 / value)):
                return True
    return False


_MEANT = re.compile(
    r"instead of|rather than|not (tied|related|the head)|on purpose|deliberate|full (width|dim)|(width|dim)\w* of all"
    r"|all head",
    re.IGNORECASE,
)


def _is_meant(site: Site) -> bool:
    """Whether a comment above the product, or beside it, says that the scale is meant to be another one."""
    where = site.product.where
    if where is None:
        return False
    above = [linecache.getline(where.file, where.line - n) for n in range(4)]
    said = " ".join(comment for line in above for comment in re.findall(r"#(.*)", line))
    return "scale" in said.lower() and bool(_MEANT.search(said))


def _is_told(patient: Patient, ratio: float) -> bool:
    """Whether its text says that the scores are divided or multiplied by a number that it holds, beside the root of the
    head width: "divided by ``layer_idx + 1``".
    """
    sentences = re.split(r"(?<=[.;])\s", " ".join(" ".join(documents(patient.module)).split()))
    said = " ".join(
        x for x in sentences if re.search(r"(score|logit|attention)s?\b.*(divi|scal|multipl)", x, re.IGNORECASE)
    )
    for name, value in vars(patient.module).items():
        if (
            not isinstance(value, (int, float))
            or isinstance(value, bool)
            or re.search(r"dim|width|head|emb|len|size", name)
        ):
            continue
        told = re.search(rf"\b{re.escape(name)}\b`* *(\+ *1)?", said)
        if (
            told
            and value + bool(told[1]) > 0
            and any(_close(ratio, (value + bool(told[1])) ** x) for x in (-1, 1, -0.5))
        ):
            return True
    return False


def _says_t5(patient: Patient) -> bool:
    kinds = [c for part in patient.module.modules() for c in type(part).__mro__[:-1]]
    names = " ".join(c.__name__ for c in kinds if not re.search(r"bias|position|bucket", c.__name__, re.IGNORECASE))
    return bool(re.search(r"(?<![a-z])(u?m|long|switch)?t5", names, re.IGNORECASE))


def _is_t5(patient: Patient, site: Site) -> bool:
    """Whether T5's bucketed bias is there: by its name, or as a table [buckets, H] indexed by relative position."""
    if any("relative_attention_bias" in name for name, _ in patient.module.named_parameters()):
        return True
    text = type(patient.module).__name__ + patient.source
    biased = any(re.search(r"rel|bias|bucket", name) for name, x in patient.module.named_parameters() if x.ndim == 2)
    return biased and bool(re.search(r"\bT5|T5\b|bucket", text)) and not re.search(r"swin", text, re.IGNORECASE)


def yarn_stretch(patient: Patient) -> float | None:
    """YaRN's mscale = 0.1 · mscale · ln(factor) + 1, if a configuration or attribute mentions it."""
    places = [patient.module, getattr(patient.module, "config", None)]
    for place in places:
        for name in ("rope_scaling", "rope_parameters"):
            entry = getattr(place, name, None)
            if isinstance(entry, dict) and entry.get("factor", 1) > 1:
                amount = entry.get("mscale_all_dim") or entry.get("mscale") or 1.0
                return 0.1 * amount * math.log(entry["factor"]) + 1
        for name in ("mscale", "m_scale", "yarn_mscale", "attn_mscale"):
            value = getattr(place, name, None)
            if isinstance(value, float) and value > 1:
                return value
        for name in ("rope_factor", "yarn_factor", "scaling_factor", "yarn_scale", "rope_scale"):
            value = getattr(place, name, None)
            if isinstance(value, (int, float)) and value > 1:
                return 0.1 * math.log(value) + 1
    return None
