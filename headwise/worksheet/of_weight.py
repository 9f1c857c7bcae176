"""Shows how one attention weight of a record is computed: query times keys, element by element, then the row's softmax.

`viewer/static/views/neuron/worksheet.js` writes the same workbook in the browser; a test compares both.
"""

from __future__ import annotations

import numpy as np
import torch

from headwise.errors import ArgumentError, WorksheetError
from headwise.language import Sentence
from headwise.records import AttentionRecord, Seen
from headwise.records.names import name_of
from headwise.records.seen import Layer, one_layer
from headwise.records.terms import Terms, head_row
from headwise.text import Tokens
from headwise.text.places import Place, find_position
from headwise.worksheet.builder import Builder
from headwise.worksheet.description import LONGEST_TITLE, ONE, Axis, Matrix, numbered, printable
from headwise.worksheet.formulas import FORBIDDEN
from headwise.worksheet.sheet import Worksheet

MOST = {"K": 1024, "D": 512}  # the maximum numbers of keys and dimensions; such a workbook opens in seconds
DIGITS = 4
EXACT = 1e-9  # the largest allowed difference between the weights of the worksheet and those of the record
ABOUT = "The numbers of a model: one query, its keys, and every step up to the attention weight."


def of_weight(
    what: Seen | AttentionRecord,
    *,
    layer: Layer | None = None,
    head: int = 0,
    row: Place,
    col: Place,
    example: int = 0,
    title: str | None = None,
) -> Worksheet:
    """Make the worksheet (all steps) of one attention weight, with the numbers of the record, in float64.

    >>> sheet = headwise.worksheet.of_weight(seen, layer=3, head=5, row="it", col="animal")
    >>> sheet.write("weight.xlsx")                    # or .md, .html

    Args:
        what: a record, or a `Seen` with several records; `layer` then chooses one.
        layer: the number of the layer, its name, or a part of its name.
        head: the query head, from 0.
        row, col: the query and the key: a position from 0, or the text of a token; "it:2" is the second "it".
        example: the index of the example in the batch.
        title: the title of the worksheet; default: the layer, the head and both tokens.

    Returns:
        A worksheet whose matrices are, for K keys of D dimensions: "Query" [1, D], "Keys" and "Products" [K, D];
        "Scores", "Scaled", "Masked", "Exponentials" and "Weights" [K, 1]; and the number "Weight".

    Raises:
        ArgumentError: the layer, head, example or token does not exist, or several tokens have this text.
        RecordError: `layer` is missing, or matches no layer or several layers.
        WorksheetError: more than 1,024 keys or 512 dimensions, or numbers that are not finite.
    """
    record, (rows, cols) = _found(what, layer, example)
    _, _, q_len, k_len = record.shape
    query, key = _place("row", row, rows, q_len), _place("col", col, cols, k_len)
    row_labels, col_labels = _labels(rows), _labels(cols)
    terms = head_row(record, example, head, query)
    for letter, size in (("K", k_len), ("D", len(terms.q))):
        if size > MOST[letter]:
            counted = {"K": "keys", "D": "dimensions of a head"}[letter]
            raise WorksheetError(
                f"a worksheet of a weight holds up to {MOST[letter]:,} {counted}. Received: {size:,} {counted}. "
                "Use a shorter text or a smaller model"
            )
    names = [str(i) if labels is None else labels[i] for labels, i in ((row_labels, query), (col_labels, key))]
    if title is None:
        where = name_of(record) if isinstance(what, Seen) else ""
        title = f"{where}, head {head}: {names[0]} → {names[1]}".removeprefix(", ")
    labels = tuple(map(str, range(k_len))) if col_labels is None else col_labels
    return _sheet(terms, names[0], labels, key, printable(title, LONGEST_TITLE))


def _sheet(terms: Terms, query: str, keys: tuple[str, ...], col: int, title: str) -> Worksheet:
    b = Builder(MOST)
    scores = _products(b, terms, Axis("", (query,)), Axis("K", keys))
    weights = _softmax(b, terms, _masked(b, terms, _changed(b, terms, scores)))
    total = b.cells("Total", ONE, ONE, f"SUM({weights.name})", digits=DIGITS)
    weight = b.cells("Weight", ONE, ONE, f"INDEX({weights.name},{col + 1},1)", kind="output", digits=6)
    b.step(
        "Attention weights",
        Sentence("Each exponential is divided by the sum. The weight of {token} (key {col}) is row {row}.").format(
            token=weights.rows.labels[col], col=col, row=col + 1
        ),
        "A = E / sum",
        [weight],
        [total],
        [weights],
    )
    apart = float((torch.from_numpy(weights.values[:, 0]) - terms.weights).abs().max())
    if not apart <= EXACT:
        raise WorksheetError(
            f"the worksheet's weights differ from the record's by {apart:.3g}; expected at most {EXACT:g}"
        )
    return b.finish(title, ABOUT, weight)


def _products(b: Builder, terms: Terms, query: Axis, keys: Axis) -> Matrix:
    elements = numbered("D", len(terms.q))
    q = b.given("input", "Query", terms.q, query, elements, digits=DIGITS)
    k = b.given("input", "Keys", terms.k, keys, elements, digits=DIGITS)
    b.step(
        "Query and keys",
        "The vector of the query, and that of every key, as the model computed them.",
        "q [1 × D],  k [K × D]",
        [q],
        [k],
    )
    products = b.cells("Products", keys, elements, f"{q.name}[1,j]*{k.name}[i,j]", digits=DIGITS)
    scores = b.cells("Scores", keys, ONE, f"SUM({products.name}[i,:])", digits=DIGITS)
    b.step(
        "Products",
        "Query and key are multiplied element by element; the sum of the products is large if they point in the same "
        "direction.",
        "s = Σ q · k",
        [scores, products],
    )
    return scores


def _changed(b: Builder, terms: Terms, s: Matrix) -> Matrix:
    """Add worksheet steps that change the scores: scale, softcap and bias; return the changed scores."""
    scale = b.option("Scale", terms.scale, digits=6)
    s = b.cells("Scaled", s.rows, ONE, f"{scale.name}*{s.name}[i,1]", digits=DIGITS)
    b.step(
        "Scale",
        "Sums of many products are large, so all scores are multiplied by a small number.",
        "s' = scale · s,  scale = 1/√D by default",
        [scale],
        [s],
    )
    if terms.softcap is not None:
        cap = b.option("Softcap", terms.softcap)
        s = b.cells("Capped", s.rows, ONE, f"{cap.name}*TANH({s.name}[i,1]/{cap.name})", digits=DIGITS)
        b.step(
            "Softcap",
            "The softcap limits every score: tanh compresses large ones.",
            "s' = softcap · tanh(s' / softcap)",
            [cap],
            [s],
        )
    if terms.bias is not None and bool(terms.bias.any()):
        bias = b.given("parameter", "Bias", terms.bias, s.rows, ONE, digits=DIGITS)
        s = b.cells("Biased", s.rows, ONE, f"{s.name}[i,1]+{bias.name}[i,1]", digits=DIGITS)
        b.step("Add the bias", "The bias of query and key is added to the score.", "s' = s' + b", [bias, s])
    return s


def _masked(b: Builder, terms: Terms, s: Matrix) -> Matrix:
    mask = b.given("mask", "Mask", np.asarray(terms.allowed.numpy(), float), s.rows, ONE, digits=0)
    s = b.cells("Masked", s.rows, ONE, f'IF({mask.name}[i,1]=1,{s.name}[i,1],"{FORBIDDEN}")', digits=DIGITS)
    b.step(
        "Mask",
        "Which key the query may attend to: 1 = may, 0 = may not. A masked score becomes −∞, and its weight 0.",
        "s' = s' where the mask is 1, else −∞",
        [mask, s],
    )
    return s


def _softmax(b: Builder, terms: Terms, s: Matrix) -> Matrix:
    sink = None if terms.sink is None else b.given("parameter", "Sink", terms.sink, digits=DIGITS)
    also, more = (f",{sink.name}", f"+EXP({sink.name}-Highest)") if sink else ("", "")
    top = b.cells("Highest", ONE, ONE, f"MAX({s.name}[:,1]{also})", digits=DIGITS)
    exps = b.cells(
        "Exponentials", s.rows, ONE, f"IF(ISNUMBER({s.name}[i,1]),EXP({s.name}[i,1]-{top.name}),0)", digits=DIGITS
    )
    total = b.cells("Sum_of_row", ONE, ONE, f"SUM({exps.name}){more}", digits=DIGITS)
    b.step(
        "Softmax: exponentials",
        Sentence(
            "The highest score is subtracted, so that nothing overflows; this changes no weight. Then the exponential "
            "makes every score positive.{also}"
        ).format(also=" The sink adds one more term to the sum, and has no key." if sink else ""),
        "E = exp(s' − highest),  sum = Σ E + exp(sink − highest)" if sink else "E = exp(s' − highest),  sum = Σ E",
        [sink] if sink else [],
        [top],
        [total],
        [exps],
    )
    return b.cells(
        "Weights", s.rows, ONE, f"IF({total.name}=0,0,{exps.name}[i,1]/{total.name})", kind="weights", digits=6
    )


# --- The requested weight ---------------------------------------------------------------------------------------------

Labels = Tokens | tuple[str, ...] | None  # the labels of rows or columns; None = unknown


def _found(
    what: Seen | AttentionRecord, layer: Layer | None, example: int
) -> tuple[AttentionRecord, tuple[Labels, Labels]]:
    """Find the record; return it, and the labels of its rows and of its columns."""
    if isinstance(what, AttentionRecord):
        if layer is not None:
            raise ArgumentError(f"layer: a record is one layer. Received: layer={layer!r}. Leave it out")
        return what, (what.row_names, what.col_names)
    record = one_layer(what, layer)
    rows, cols = what.axes(record)
    if not 0 <= example < record.shape[0]:
        raise ArgumentError(f"example must lie in 0 … {record.shape[0] - 1}. Received: example={example}")
    return record, (None if rows is None else rows[example], None if cols is None else cols[example])


def _place(name: str, token: Place, of: Labels, count: int) -> int:
    """Return the position that `token`, a number or a text, means. Raises ArgumentError if it is out of range."""
    place = find_position(token, of, name)
    if not 0 <= place < count:
        raise ArgumentError(f"{name} must lie in 0 … {count - 1}. Received: {name}={token}")
    return place


def _labels(of: Labels) -> tuple[str, ...] | None:
    return of.labels if isinstance(of, Tokens) else of
