"""Queries, keys and values have projections of their own, for each head, and query heads share key heads in runs.

The marks say which feature of which weight every number of a query, key and value comes from, and of which input it is.
The names of weights and arguments say what their author intended.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.claims import text_of_all
from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.reading import marks
from headwise.doctor.reading.anatomy import Anatomy
from headwise.doctor.reading.events import Seed
from headwise.doctor.reading.projection_names import PLURALS, read_name
from headwise.doctor.reading.site import Site
from headwise.language import Sentence, join

FINDINGS = ("projection-zero", "projection-reused", "gqa-order", "qkv-order", "argument-order")


def check(patient: Patient) -> Iterator[Finding]:
    anatomy = patient.see()
    sites = [site for site in anatomy.sites if site.known]
    yield from _alike(sites)
    yield from _chained(sites)
    for site in sites:
        zero = [name for name in "qkv" if not bool(getattr(site, name).any())]
        if zero:
            yield _zero(site, zero)
            return
        yield from _groups(patient, site)
        used = {name: found for name in "qkv" if (found := _used(site, name)) is not None}
        yield from _of_slices(patient, anatomy, used)
        yield from _order(patient, site, used)
        yield from _named(patient, anatomy, used)


# --- Numbers that are 0, or the same ----------------------------------------------------------------------------------


def _zero(site: Site, names: list[str]) -> Finding:
    what = join((PLURALS[name] for name in names), " and ")
    weights = ", ".join(dict.fromkeys(seed.name for name in names for seed in site.projections[name] if seed.name))
    stuck = names[:2] == ["q", "k"]
    effect = "the attention adds nothing to its output" if names == ["v"] else "every key gets the same weight"
    return Finding(
        "projection-zero",
        "bug" if stuck else "risk",  # one of them may be meant as a beginning
        Sentence("the {what} are 0 for every input{weights}: {effect}{more}").format(
            what=what,
            weights=f" ({weights})" if weights else "",
            effect=effect,
            more="; each is 0 because of the other's gradient, so neither learns" if stuck else "",
        ),
        "initialise the projection, or load its weights",
        site.product.where,
    )


def _of_slices(patient: Patient, anatomy: Anatomy, used: dict[str, tuple[Seed, Tensor]]) -> Iterator[Finding]:
    """One small projection that every head applies to its own slice of the input: it was split into heads too early.

    Some do that on purpose, for few parameters, and say so.
    """
    text = text_of_all(patient.module).lower()
    if "q" not in used or any(word in text for word in ("shar", "tied", "same")):
        return
    seed, columns = used["q"]
    on_the_left = seed.left is not None and seed.left.live
    operand, heads = seed.left if on_the_left else seed.right, len(columns)
    small = 0 if operand is None else operand.value.shape[-1 if on_the_left else -2]
    if heads > 1 and heads * small == anatomy.inputs.query.shape[-1] and len({_weight(seed, x) for x in columns}) == 1:
        yield Finding(
            "projection-reused",
            patient.severity("projection-reused: of slices", "bug"),
            Sentence(
                "{name} takes {width} of the input's numbers at a time: all {heads} heads share it, and each head "
                "sees only its own slice of the input"
            ).format(name=seed.name, width=small, heads=heads),
            "project first, then split into heads: Linear(width, width) before the view; or say that heads share it",
            seed.where,
        )


def _alike(sites: list[Site]) -> Iterator[Finding]:
    """Heads with the same queries, keys and values, in one product or in several, as of a list of heads."""
    sites = list({site.product.number: site for site in sites}.values())  # the same scores may have two softmaxes
    shapes = [tuple(x.shape[i] for x in (site.q, site.k, site.v) for i in (0, 2, 3)) for site in sites]
    for shape in dict.fromkeys(shapes):
        here = [site for site, of in zip(sites, shapes, strict=True) if of == shape]
        q, k, v = (torch.cat([getattr(site, name) for site in here], 1).double() for name in "qkv")
        groups = heads_alike(q, k, v) if q.shape[2] > 1 else []
        alike = [group for group in groups if len(group) > 1]
        if not alike or float((q - q[..., :1]).abs().max()) < 1e-6 * float(q.abs().max()):
            continue  # constant weights, as in a test, make everything alike
        yield Finding(
            "projection-reused",
            "bug",
            Sentence(
                "heads compute identical numbers: {alike} have the same queries, keys and values, so that {heads} "
                "heads are {different}"
            ).format(
                alike="; ".join(", ".join(map(str, g)) for g in alike[:4]), heads=q.shape[1], different=len(groups)
            ),
            "give every head its own part of the projections; of a list, [Head(...) for _ in range(n)], not "
            "[Head(...)] * n",
            here[0].product.where,
        )


def _chained(sites: list[Site]) -> Iterator[Finding]:
    """A projection of what the same projection has made, as in a loop over heads that overwrites its inputs."""
    for site, name in itertools.product(sites, "qkv"):
        for seed in site.projections[name]:
            live = next((x for x in (seed.left, seed.right) if x is not None and x.live), None)
            origins = () if live is None else marks.seed_of(live.source).unique().tolist()
            if seed.name and any(origin >= 0 and site.trace.seed(origin).name == seed.name for origin in origins):
                yield Finding(
                    "projection-reused",
                    "bug",
                    Sentence("{name} is applied to what it has made itself, and the result is the {plurals}").format(
                        name=seed.name, plurals=PLURALS[name]
                    ),
                    "keep the inputs: q_i = w_q[i](x), not x = w_q[i](x)",
                    seed.where,
                )
                return


def heads_alike(*parts: Tensor) -> list[list[int]]:
    """The heads of parts [B, H, L, D], those together in which every part is the same."""
    groups: list[list[int]] = []
    for head in range(parts[0].shape[1]):
        for group in groups:
            pairs = ((x[:, group[0]], x[:, head], 1e-6 * float(x.abs().max())) for x in parts)
            if all(torch.allclose(a, b, rtol=1e-5, atol=near) for a, b, near in pairs):
                group.append(head)
                break
        else:
            groups.append([head])
    return groups


# --- Which key heads the query heads use ------------------------------------------------------------------------------


def _groups(patient: Patient, site: Site) -> Iterator[Finding]:
    assert site.grid is not None
    assert site.contraction is not None
    if bool((site.grid.key_heads < 0).any()):
        return
    keys = site.grid.key_heads.unique(return_inverse=True)[1].tolist()
    first = site.columns("v")[:, 0]
    values = first.unique(return_inverse=True)[1].tolist() if bool((first >= 0).all()) else keys
    told = grouping(keys, values)
    if told:
        yield Finding(
            "gqa-order",
            patient.severity("gqa-order: tiled", "bug") if keys == values else "bug",
            told,
            "repeat key and value heads with repeat_interleave(H // G, dim=head), or with expand on a new dimension "
            "after the head; both in the same way",
            site.product.where if values == sorted(values) or keys == values else site.contraction.product.where,
        )


def grouping(keys: list[int], values: list[int]) -> str:
    """How the key heads (and value heads) of the query heads differ from runs such as 0, 0, 1, 1; "" if they do not, or
    are not in groups.
    """
    count, groups = len(keys), len(set(keys))
    if groups in (1, count) or count % groups:
        return ""
    expected = [h // (count // groups) for h in range(count)]
    of_keys, of_values, right = (", ".join(map(str, x)) for x in (keys, values, expected))
    if len(set(values)) == groups and values != keys:
        return Sentence(
            "the {count} query heads use the key heads {of_keys}, but the value heads {of_values}; expected {right} "
            "for both: most weights are multiplied with the values of another head"
        ).format(count=count, of_keys=of_keys, of_values=of_values, right=right)
    if keys != [h % groups for h in range(count)]:
        return ""
    return Sentence(
        "the {count} query heads use the key heads {of_keys} (tiled); expected {right}: each key head serves "
        "{neighbours} neighbouring query heads"
    ).format(count=count, of_keys=of_keys, right=right, neighbours=count // groups)


# --- Which weights and which inputs -----------------------------------------------------------------------------------


def _used(site: Site, name: str) -> tuple[Seed, Tensor] | None:
    """The projection of q, k or v and its columns, [H, D]; None if it is not one projection."""
    columns = site.columns(name)
    if bool((columns < 0).any()):
        return None
    numbers = (columns >> 32).unique().tolist()
    seed = site.trace.seed(numbers[0])
    return (seed, columns & ((1 << 32) - 1)) if len(numbers) == 1 and seed.kind == "projection" else None


def _order(patient: Patient, site: Site, used: dict[str, tuple[Seed, Tensor]]) -> Iterator[Finding]:
    """Queries, keys and values that are parts of one fused projection."""
    numbers = [seed.number for seed, _ in used.values()]
    shared = [name for name, (seed, _) in used.items() if numbers.count(seed.number) > 1]
    first = {name: int(used[name][1].min()) for name in shared}
    if len(shared) < 2 or len(set(first.values())) < len(shared):
        return  # used twice: reported below
    if len(shared) == 2 and len({used[name][1].numel() for name in shared}) > 1:
        return  # a latent, key and value at once, and the rotated part of the keys: their order is free
    order, seed = sorted(shared, key=lambda name: first[name]), used[shared[0]][0]
    stated = read_name(seed.name.replace(".in_proj.", ".")).letters
    if order == shared or stated in ("", "".join(order)):
        return
    yield Finding(
        "qkv-order",
        patient.severity("qkv-order: of a fused projection", "bug"),
        Sentence(
            "the fused projection {name} is split in the order {order}: features of the {features}; expected {usual}, "
            "as in checkpoints and other code"
        ).format(
            name=seed.name,
            order=", ".join(order),
            features=join(Sentence(f"{PLURALS[name]} from {{{name}}}").format(**first) for name in shared),
            usual=", ".join(shared),
        ),
        Sentence("split it in the order {usual}").format(usual=", ".join(shared)),
        seed.where,
    )


def _named(patient: Patient, anatomy: Anatomy, used: dict[str, tuple[Seed, Tensor]]) -> Iterator[Finding]:
    """Separate projections, by their names."""
    touched = {name for seed in anatomy.run.seeds for name in seed.name.split(", ")}
    parameters = patient.module.named_parameters()
    idle = {read_name(name).letters: name for name, x in parameters if x.ndim >= 2 and name not in touched}
    weights = {name: _weight(*found) for name, found in used.items()}
    letters = {name: read_name(weight[0]).letters for name, weight in weights.items()}
    for a, b in (("q", "k"), ("k", "v"), ("q", "v")):
        if a not in weights or weights[a] != weights.get(b):
            continue
        missing = next((idle[x] for x in (a, b) if x in idle), None)
        if missing is None and a + b != "qk" and letters[a] not in (a, b):
            continue  # keys and values may share a projection by design, if its name is not that of one of them
        yield Finding(
            "projection-reused",
            "bug" if missing else "risk",
            Sentence("{these} and {those} come from the same weight {weight}{more}").format(
                these=PLURALS[a],
                those=PLURALS[b],
                weight=weights[a][0],
                more=Sentence(", and {missing} is never used").format(missing=missing) if missing else "",
            ),
            Sentence("give the {plurals} a separate projection").format(plurals=PLURALS[b])
            if missing is None
            else Sentence("use {missing} where it belongs").format(missing=missing),
            used[b][0].where,
        )
        return
    wrong = [name for name in letters if len(letters[name]) == 1 and letters[name] != name]
    if wrong and len(set(weights.values())) == len(weights):
        said = join(
            (
                Sentence("{weight} computes the {plural}").format(weight=weights[name][0], plural=PLURALS[name])
                for name in wrong
            ),
            "; ",
        )
        yield Finding(
            "argument-order",
            "bug" if len(wrong) > 1 or "lora" in weights[wrong[0]][0].lower() else "risk",
            Sentence("by their names, the projections are swapped: {said}").format(said=said),
            "use each projection for what its name says",
            used[wrong[0]][0].where,
        )


def _weight(seed: Seed, columns: Tensor) -> tuple[str, tuple[int, ...]]:
    """Which elements of which parameter those columns come from: the first of each."""
    if seed.left is None or seed.right is None:
        return seed.name, tuple(columns.flatten().tolist())
    table = seed.right.source[:, 0, :] if seed.left.live else seed.left.source[:, :, 0]
    several = table.shape[0] > 1 and bool((table != table[:1]).any())
    flat = table.reshape(-1) if several else table[0]
    return seed.name, tuple(flat[columns.flatten() % len(flat)].tolist())
