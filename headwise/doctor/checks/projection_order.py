"""Which projection is used for what: a fused weight split in the wrong order, one projection used twice, or swapped.

The marks say which feature of which weight every number of a query, key and value comes from. The names of the weights
say what their author intended. A module trains with any order, but loads no checkpoint of the other order.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.reading.anatomy import Anatomy
from headwise.doctor.reading.documents import documents
from headwise.doctor.reading.events import Seed
from headwise.doctor.reading.projection_names import read_name
from headwise.doctor.reading.site import Site

FINDINGS = ("qkv-order", "projection-reused", "argument-order")

_WORDS = {"q": "queries", "k": "keys", "v": "values"}


def check(patient: Patient) -> Iterator[Finding]:
    anatomy = patient.see()
    yield from _same_heads(anatomy)
    for site in anatomy.sites:
        if site.grid is None or site.contraction is None:
            continue
        used = {name: _used(site, name) for name in "qkv"}
        yield from _order(patient, site, used)
        yield from _named(patient, anatomy, site, used)


def _same_heads(anatomy: Anatomy) -> Iterator[Finding]:
    """Parallel attention heads, kept in a list, that share their weights and so compute the same."""
    seen: dict[tuple[str, ...], Site] = {}
    for site in anatomy.sites:
        names = tuple(
            sorted(seed.name for part in site.projections.values() for seed in part if seed.kind == "projection")
        )
        first = seen.setdefault(names, site)
        if names and first is not site and _alike(first, site):
            count = sum(_alike(first, other) for other in anatomy.sites)
            yield Finding(
                "projection-reused",
                "bug",
                f"{count} heads compute identical numbers: all use {names[0]}",
                "make a separate projection for each head: [Head(...) for _ in range(n)], not [Head(...)] * n",
                site.product.where,
                numbers={"heads": float(count)},
            )
            return


def _alike(a: Site, b: Site) -> bool:
    x, y = a.softmax.weights, b.softmax.weights
    if a.product is b.product:  # the same scores in two softmaxes, such as a hard one and a soft one
        return False
    if not (x.shape == y.shape and bool(x.numel()) and bool((x < 1).any()) and torch.equal(x, y)):
        return False
    one, other = a.contraction, b.contraction  # differential attention gives the same weights to other values
    return one is None or other is None or torch.equal(one.values.value, other.values.value)


_PART = re.compile(r"^_*(q|k|v)(uery|ueries|ey|eys|alue|alues|s)?_*$", re.IGNORECASE)


def _unpacked(patient: Patient) -> list[str]:
    """The order in which an assignment such as `v, k, q = fused(x).chunk(3, -1)` names the three."""
    try:
        tree = ast.parse(textwrap.dedent(patient.source))
    except SyntaxError:
        return []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            names = [x.id for x in node.targets[0].elts if isinstance(x, ast.Name)]
            letters = [m[1].lower() for name in names if (m := _PART.match(name))]
            if sorted(letters) == ["k", "q", "v"] and not isinstance(node.value, ast.Tuple):
                return letters
    return []


def _used(site: Site, name: str) -> tuple[Seed, Tensor] | None:
    """The projection of q, k or v and its columns, [H, D]; None if it is not one projection."""
    columns = site.columns(name)
    if bool((columns < 0).any()):
        return None
    numbers = (columns >> 32).unique().tolist()
    seed = site.trace.seed(numbers[0])
    return (seed, columns & ((1 << 32) - 1)) if len(numbers) == 1 and seed.kind == "projection" else None


def _weight(seed: Seed, columns: Tensor) -> tuple[str, tuple[int, ...]]:
    """Which elements of which parameter those columns come from: the first of each."""
    if seed.left is None or seed.right is None:
        return seed.name, tuple(columns.flatten().tolist())
    table = seed.right.source[:, 0, :] if seed.left.live else seed.left.source[:, :, 0]
    several = table.shape[0] > 1 and bool((table != table[:1]).any())
    flat = table.reshape(-1) if several else table[0]
    return seed.name, tuple(flat[columns.flatten() % len(flat)].tolist())


def _order(patient: Patient, site: Site, used: dict[str, tuple[Seed, Tensor] | None]) -> Iterator[Finding]:
    """Queries, keys and values that are parts of one fused projection."""
    together = [name for name in "qkv" if used[name] is not None]
    seeds = {name: used[name][0].number for name in together}  # type: ignore[index]
    shared = [name for name in together if list(seeds.values()).count(seeds[name]) > 1]
    if len(shared) < 2:
        return
    first = {name: int(used[name][1].min()) for name in shared}  # type: ignore[index]
    if len(set(first.values())) < len(shared):
        return  # used twice: reported below
    if len({used[name][1].numel() for name in shared}) > 1 and len(shared) == 2:  # type: ignore[index]
        return  # a latent, key and value at once, and the rotated part of the keys: their order is free
    order = sorted(shared, key=lambda name: first[name])
    if order == shared:
        yield from _documented(patient, site, used)
        return
    seed = used[shared[0]][0]  # type: ignore[index]
    stated = read_name(seed.name.removesuffix(".weight").removesuffix(".in_proj")).letters
    if stated == "".join(order):
        return  # its documentation states this order
    if not stated and _unpacked(patient) == order:
        return  # the weight's name states none, and the code names each part
    parts = ", ".join(f"{_WORDS[name]} from {first[name]}" for name in shared)
    yield Finding(
        "qkv-order",
        patient.severity("qkv-order: of a fused projection", "bug"),
        f"the fused projection {seed.name} is split in the order {', '.join(order)}: features of the {parts}; expected "
        f"{', '.join(shared)}, as in checkpoints and other code",
        f"split it in the order {', '.join(shared)}",
        seed.where,
        numbers={name: float(first[name]) for name in shared},
    )


_BY_HEAD = re.compile(
    r"[\[(]\s*(num_(attention_)?heads|n_heads?|heads|H|nh|np)\s*,\s*3\s*,"
    r"\s*(head_(size|dim)|dim_head|hn|D|d|hs)\s*[\])]"
    r"|(each|every|per) head( \w+){0,3}:?\s*[\[(]?\s*q(uery|ueries)?\s*[|,;]\s*k(eys?)?\s*[|,;]\s*v(alues?)?\b"
    r"|\bq_?[01],? k_?[01],? v_?[01],? q_?[12]\b"
)
# Text about a conversion names a layout that the weight no longer has.
_TWO_LAYOUTS = re.compile(r"convert|re-?order|permut|rearrang|(de|un)-?interleav|instead of", re.IGNORECASE)


def _documented(patient: Patient, site: Site, used: dict[str, tuple[Seed, Tensor] | None]) -> Iterator[Finding]:
    """A packed projection that is documented head by head, and split in thirds."""
    texts = (text for text in documents(patient.module) if not _TWO_LAYOUTS.search(text))
    said = next((match for text in texts if (match := _BY_HEAD.search(text))), None)
    q = used["q"]
    others = [used[name] for name in "kv"]
    if said is None or q is None or any(x is None or x[0] is not q[0] for x in others):
        return
    heads, width = q[1].shape
    if heads > 1 and torch.equal(q[1].flatten(), torch.arange(heads * width)):
        yield Finding(
            "qkv-order",
            "bug",
            f"its documentation lays {q[0].name} out as {said.group(0)}, head by head; it is split in thirds, so "
            "that the queries of most heads are the documented keys and values of others",
            "split it head by head: view(B, N, H, 3 * D).chunk(3, dim=-1)",
            q[0].where,
        )


def _named(
    patient: Patient, anatomy: Anatomy, site: Site, used: dict[str, tuple[Seed, Tensor] | None]
) -> Iterator[Finding]:
    """Separate projections, by their names."""
    touched = {name for seed in anatomy.run.seeds for name in seed.name.split(", ")}
    idle = {
        read_name(name.removesuffix(".weight")).letters: name
        for name, x in patient.module.named_parameters()
        if x.ndim >= 2 and name not in touched
    }
    weights = {name: _weight(*found) for name in "qkv" if (found := used[name]) is not None}
    for a, b in (("q", "k"), ("k", "v"), ("q", "v")):
        if a in weights and weights[a] == weights.get(b):
            missing = next((idle[x] for x in (a, b) if x in idle), None)
            if missing is None and (a, b) != ("q", "k") and not _all_named(weights, a, b):
                continue  # keys and values may share a projection by design
            yield Finding(
                "projection-reused",
                "bug" if missing else "risk",
                f"{_WORDS[a]} and {_WORDS[b]} come from the same weight {weights[a][0]}"
                + (f", and {missing} is never used" if missing else ""),
                f"give the {_WORDS[b]} a separate projection" if missing is None else f"use {missing} where it belongs",
                used[b][0].where,  # type: ignore[index]
            )
            return
    letters = {name: read_name(weights[name][0].removesuffix(".weight")).letters for name in weights}
    wrong = [name for name in letters if len(letters[name]) == 1 and letters[name] != name]
    if wrong and len({weights[name] for name in weights}) == len(weights):
        said = "; ".join(f"{weights[name][0]} computes the {_WORDS[name]}" for name in wrong)
        exchanged = sorted(wrong) == sorted(letters[name] for name in wrong)
        mapping = sorted(wrong) == ["k", "q"]
        yield Finding(
            "argument-order",
            "bug" if exchanged or len(wrong) > 1 or "lora" in weights[wrong[0]][0].lower() else "risk",
            f"by their names, the projections are swapped: {said}"
            + ("; the scores are then transposed" if mapping else ""),
            "use each projection for what its name says",
            used[wrong[0]][0].where,  # type: ignore[index]
        )


def _all_named(weights: dict[str, tuple[str, tuple[int, ...]]], a: str, b: str) -> bool:
    """Whether the name of a weight that two share says that it belongs to only one of them."""
    letters = read_name(weights[a][0].removesuffix(".weight")).letters
    return letters in (a, b)
