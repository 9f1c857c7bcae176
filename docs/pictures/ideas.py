"""Makes docs/pictures/idea-*.png: one picture for each page of docs/concepts. What they show is computed here."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import headwise
from headwise import edits, masks
from headwise.models.checkpoint import default_model
from headwise.nn import positions
from headwise.plot.colour import colours
from headwise.text import Tokenizer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "examples"))

INK, FAINT, LINE, BLUE, ORANGE, VIOLET = "#1d1b22", "#66616e", "#dfdcd5", "#0a5fbe", "#ed7a53", "#6b2d73"
DPI = 144
TIRED = "The animal didn't cross the street because it was too tired."
WORDS = ["I", "drink", "and", "know"]


def attention() -> Figure:
    """softmax(q kᵀ/√D) v, of four words with two numbers each."""
    q = torch.tensor([[2.0, 0.0], [1.0, 2.0], [0.0, 1.0], [-1.0, 2.0]])
    k = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0], [-1.0, 1.0]])
    v = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [1.0, 1.0]])
    scores = q @ k.T / 2**0.5
    out = headwise.attention(q[None, None], k[None, None], v[None, None])[0, 0]
    weights = scores.softmax(-1)
    torch.testing.assert_close(out, weights @ v)
    figure, axes = panels(4, (9, 2.7), widths=(4, 4, 2, 2))
    numbers(axes[0], scores, "scores = q kᵀ / √D", WORDS, WORDS, "PuOr_r", 3)
    numbers(axes[1], weights, "weights: each row sums to 1", WORDS, WORDS, colours("ember"), 1)
    numbers(axes[2], v, "values", WORDS, ["", ""], "Greys", 2)
    numbers(axes[3], out, "output", WORDS, ["", ""], "Greys", 2)
    between(figure, axes, ("softmax", "×", "="))
    return figure


def compose() -> Figure:
    """Masks joined by & and |."""
    figure, axes = panels(5, (9, 2.3))
    both, start = masks.causal() & masks.window(3, 3), masks.global_tokens([0])
    shown = (
        (masks.causal(), "causal()"),
        (masks.window(3, 3), "window(3, 3)"),
        (both, "both"),
        (start, "global_tokens([0])"),
        (both | start, "one mask"),
    )
    for ax, (mask, title) in zip(axes, shown, strict=True):
        squares(ax, mask.to_bool(12)[0, 0], title)
    between(figure, axes, ("&", "=", "|", "="))
    return figure


def tiles() -> Figure:
    """What a kernel computes of a mask, and what every kernel would take by the plan."""
    mask = masks.window(128, 128) | masks.global_tokens([0])
    codes = mask.blocks(1024, 1024, 64)[0, 0]  # 0 = none allowed, 1 = some, 2 = all
    figure = Figure(figsize=(9, 3.4), layout="constrained", dpi=DPI)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
    ember = colours("ember")
    left.pcolormesh(
        codes.numpy(), cmap=ListedColormap(["white", ember(0.25), ember(0.62)]), edgecolors=LINE, linewidth=0.4
    )
    left.set(aspect="equal", xticks=[], yticks=[], xlabel="1,024 keys, in blocks of 64", ylabel="1,024 queries")
    left.invert_yaxis()
    left.set_title("window(128, 128) | global_tokens([0])", fontsize=9)
    names = ("empty: skipped", "partial: the mask is evaluated", "full: no mask needed")
    handles = [Patch(facecolor=colour, edgecolor=LINE) for colour in ("white", ember(0.25), ember(0.62))]
    left.legend(handles, names, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.08), frameon=False, ncols=1)
    q = torch.empty(1, 12, 4096, 64)
    plan = headwise.plan(q, q, q, mask=mask)
    costs = {each.kernel: each.cost.time / plan.cost.time for each in plan.verdicts if each.cost is not None}
    times = dict(sorted(costs.items(), key=lambda item: -item[1]))
    right.barh(list(times), list(times.values()), color=[BLUE if name == plan.kernel else LINE for name in times])
    for place, value in enumerate(times.values()):
        right.text(value, place, f" {value:.3g}×", va="center", fontsize=8, color=INK)
    right.set_title("4,096 tokens, 12 heads of 64: expected time on two CPU cores", fontsize=9)
    right.set_xlim(0, max(times.values()) * 1.15)
    right.set_xticks([])
    plain(right)
    return figure


def records() -> Figure:
    """What a layer's weights take, and what a record keeps."""
    tokens = [2**n for n in range(9, 18)]
    heads, dim = 12, 64
    figure = Figure(figsize=(7, 3), layout="constrained", dpi=DPI)
    ax = figure.subplots()
    ax.loglog(tokens, [heads * n * n * 4 for n in tokens], color=ORANGE, lw=2)
    ax.loglog(tokens, [2 * heads * n * dim * 4 for n in tokens], color=BLUE, lw=2)
    ax.text(
        tokens[-1], heads * tokens[-1] ** 2 * 4, "  the weights: H · S² numbers", va="center", fontsize=8, color=ORANGE
    )
    ax.text(
        tokens[-1], 2 * heads * tokens[-1] * dim * 4, "  the record: 2 · H · S · D", va="center", fontsize=8, color=BLUE
    )
    ax.set_xticks(tokens[::2], [f"{n:,}" for n in tokens[::2]])
    ax.minorticks_off()
    ax.set_yticks([1e7, 1e9, 1e11], ["10 MB", "1 GB", "100 GB"])
    ax.set_xlim(tokens[0], tokens[-1])
    ax.set_title("Memory of one layer of 12 heads of 64, float32, by tokens", fontsize=9, loc="left")
    plain(ax)
    return figure


def statistics() -> Figure:
    """The entropy of every head of MiniLM, and the rows of two of them."""
    seen, labels = minilm()
    entropy = torch.stack([record.entropy()[0].mean(-1) for record in seen])  # [layers, heads]
    figure = Figure(figsize=(9, 3), layout="constrained", dpi=DPI)
    left, *rows = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
    drawn = left.imshow(entropy, cmap=colours("ember"))
    left.set(xlabel="head", ylabel="layer", xticks=range(12), yticks=range(6))
    left.set_title("Entropy of each head, in nats", fontsize=9)
    left.tick_params(labelsize=7, length=0)
    figure.colorbar(drawn, ax=left, shrink=0.7, pad=0.02).ax.tick_params(labelsize=7)
    query = labels.index("it")
    each_row = torch.stack([record.entropy()[0, :, query] for record in seen])
    for ax, place in zip(rows, (each_row.argmin(), each_row.argmax()), strict=True):
        layer, head = divmod(int(place), 12)
        weights = seen[layer].weights(heads=head, rows=query)[0, 0, 0]
        ax.barh(range(len(labels)), weights, color=BLUE)
        ax.set_yticks(range(len(labels)), labels, fontsize=6.5)
        ax.invert_yaxis()
        ax.set_title(f"“it”, layer {layer} head {head}: {each_row[layer, head]:.2f}", fontsize=9)
        ax.tick_params(axis="x", labelsize=7)
        ax.set_xlim(0, 1)
        plain(ax)
    return figure


def editing() -> Figure:
    """One head of MiniLM as it is and under three edits."""
    runs = {
        "plain": (),
        'block("*", queries="it",\n         keys="animal")': (edits.block("*", queries="it", keys="animal"),),
        'temperature("layers.5", 0.5)': (edits.temperature("layers.5", 0.5),),
        'window("layers.5", 3)': (edits.window("layers.5", 3),),
    }
    figure, axes = panels(4, (9, 2.9))
    for ax, (title, asked) in zip(axes, runs.items(), strict=True):
        seen, labels = minilm(*asked)
        ax.imshow(seen[5].weights(heads=11)[0, 0] ** 0.5, cmap=colours("ember"), vmin=0, vmax=1)
        ax.set_title(title, fontsize=7.5, family="monospace" if asked else None)
        ax.set_xticks(range(len(labels)), labels, fontsize=5.5, rotation=90)
        ax.set_yticks(range(len(labels)), labels if ax is axes[0] else [], fontsize=5.5)
        ax.tick_params(length=0)
    return figure


def doctor() -> Figure:
    """examples/my_attention.py and its repair: the same weights of the projections."""
    from my_attention import MyAttention

    torch.manual_seed(0)
    wrong = MyAttention(64, 8)
    right = headwise.nn.MultiHeadAttention(64, 8)
    with torch.no_grad():
        for layer in (wrong.query, wrong.key):
            layer.weight *= 3  # as after some training
        right.load_state_dict(wrong.state_dict())
        x = torch.randn(1, 16, 64)
        weights = []
        for module in (wrong, right):
            with headwise.watch(module) as seen:
                module(x)
            weights.append(seen[0].weights(heads=0)[0, 0])
    figure, axes = panels(2, (6, 3))
    for ax, shown, title in zip(
        axes, weights, ("scores / √64, the model width: too even", "scores / √8, the head width"), strict=True
    ):
        ax.imshow(shown, cmap=colours("ember"), vmin=0, vmax=float(weights[1].max()))
        ax.set_title(title, fontsize=9)
        ax.set(xticks=[], yticks=[], xlabel="keys", ylabel="queries")
    return figure


def caches() -> Figure:
    """What one token takes in one layer, with 32 heads of 128 in bfloat16."""
    kinds = {
        "multi-head: 32 × 2 × 128": 32 * 2 * 128 * 2,
        "grouped-query: 8 × 2 × 128": 8 * 2 * 128 * 2,
        "… in int8, with a scale a head": 8 * 2 * (128 + 4),
        "multi-head latent: 512 + 64": (512 + 64) * 2,
        "multi-query: 1 × 2 × 128": 2 * 128 * 2,
    }
    figure = Figure(figsize=(7, 2.4), layout="constrained", dpi=DPI)
    ax = figure.subplots()
    ax.barh(list(kinds), list(kinds.values()), color=BLUE)
    ax.invert_yaxis()
    for place, value in enumerate(kinds.values()):
        ax.text(value, place, f"  {value:,} bytes", va="center", fontsize=8, color=INK)
    ax.set_xlim(0, max(kinds.values()) * 1.2)
    ax.set_xticks([])
    ax.set_title(
        "What a token takes in the cache of one layer, 32 query heads of 128, bfloat16", fontsize=9, loc="left"
    )
    plain(ax)
    return figure


def order() -> Figure:
    """How three schemes change a score with the distance of two equal tokens."""
    distance = torch.arange(128)
    figure = Figure(figsize=(9, 2.6), layout="constrained", dpi=DPI)
    axes = figure.subplots(1, 3)
    token = torch.ones(1, 1, 128, 64)
    turned = positions.Rope(64).rotate(token, distance[None])
    axes[0].plot(distance, turned[0, 0] @ turned[0, 0, 0] / 64, color=BLUE)
    axes[0].set_title("Rope: q · k of equal tokens, of 1", fontsize=9)
    for head, slope in enumerate(positions.Alibi(8).slopes.flatten()[::2]):
        axes[1].plot(distance, -float(slope) * distance, color=BLUE, alpha=1 - 0.2 * head)
    axes[1].set_title("Alibi: added to the score, heads 0, 2, 4, 6", fontsize=9)
    axes[2].step(distance, positions.T5Buckets(8).buckets(-distance), color=BLUE)
    axes[2].set_title("T5Buckets: which number of its table is added", fontsize=9)
    for ax in axes:
        ax.set_xlabel("distance in tokens", fontsize=8)
        ax.tick_params(labelsize=7)
        plain(ax)
    return figure


def minilm(*asked: Any) -> tuple[headwise.Seen, list[str]]:
    folder = default_model()
    bert = headwise.Bert.from_pretrained(folder)
    tokens = Tokenizer.from_pretrained(folder).encode(TIRED)
    changed = headwise.edit(bert, list(asked), tokens=tokens) if asked else contextlib.nullcontext()
    with torch.no_grad(), changed, headwise.watch(bert, tokens=tokens) as seen:
        bert(torch.tensor([tokens.ids]))
    return seen, list(tokens.labels)


def panels(count: int, size: tuple[float, float], widths: tuple[float, ...] | None = None) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=size, layout="constrained", dpi=DPI)
    figure.get_layout_engine().set(wspace=0.12)
    return figure, list(figure.subplots(1, count, width_ratios=widths))


def numbers(
    ax: Axes, values: torch.Tensor, title: str, rows: list[str], columns: list[str], cmap: str | Colormap, most: float
) -> None:
    """A matrix with its numbers in the cells."""
    low = -most if bool((values < 0).any()) else 0
    ax.imshow(values, cmap=cmap, vmin=low * 1.6, vmax=most * 1.6 if low else most * (1 if most == 1 else 2))
    for (i, j), value in (
        (place, values[place])
        for place in torch.cartesian_prod(*map(torch.arange, values.shape)).unbind(0)
        for place in [tuple(place.tolist())]
    ):
        ax.text(
            j,
            i,
            f"{value:.2f}".replace("-", "−"),
            ha="center",
            va="center",
            fontsize=7,
            color="white" if most == 1 and value > 0.5 else INK,
        )
    ax.set_xticks(range(len(columns)), columns, fontsize=7)
    ax.set_yticks(range(len(rows)), rows, fontsize=7)
    ax.tick_params(length=0)
    ax.set_title(title, fontsize=8.5)


def squares(ax: Axes, allowed: torch.Tensor, title: str) -> None:
    ax.pcolormesh(
        allowed.int(),
        cmap=ListedColormap(["white", colours("ember")(0.62)]),
        vmin=0,
        vmax=1,
        edgecolors=LINE,
        linewidth=0.5,
    )
    ax.set(aspect="equal", xticks=[], yticks=[])
    ax.invert_yaxis()
    ax.set_title(title, fontsize=8, family="monospace" if "(" in title else None)


def between(figure: Figure, axes: list[Axes], signs: tuple[str, ...]) -> None:
    """A sign between each two panels, once their places are known."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for left, right, sign in zip(axes, axes[1:], signs, strict=False):
        a, b = left.get_position(), right.get_position()
        figure.text(
            (a.x1 + b.x0) / 2,
            (a.y0 + a.y1) / 2,
            sign,
            ha="center",
            va="center",
            fontsize=9 if len(sign) > 1 else 13,
            color=FAINT,
        )


def plain(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(LINE)
    ax.tick_params(labelsize=8, colors=INK, length=2)


PICTURES = (attention, compose, tiles, records, statistics, editing, doctor, caches, order)

if __name__ == "__main__":
    for made in PICTURES:
        made().savefig(HERE / f"idea-{made.__name__}.png", facecolor="white", bbox_inches="tight", pad_inches=0.08)
