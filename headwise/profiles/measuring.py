"""Lets a model read a batch of windows (parts of texts), and adds measures of each head to the sums of its layer."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from headwise.analyses.patterns import previous_token
from headwise.analyses.stack import self_attention
from headwise.capture.context import watch
from headwise.capture.pretrained import Pretrained
from headwise.errors import RecordError
from headwise.profiles.bins import BINS, MEASURES, NEAR, OF_RECORDS
from headwise.profiles.classes import CLASSES, SEPARATOR, START, classify_tokens
from headwise.profiles.examples import Example, Window
from headwise.profiles.pairs import ALL, PairSketch
from headwise.profiles.sums import LayerSums
from headwise.records import AttentionRecord
from headwise.tasks.text.padding import padded

CELLS = 2**22  # attention weights that are in memory at once
SPREAD = 2**32  # a pair of tokens is stored as one number, its code: query id · SPREAD + key id


@dataclass(frozen=True)
class Batch:
    """The windows of a batch, as tensors. B is the number of windows, N the length of the longest window."""

    windows: Sequence[Window]
    ids: Tensor  # int64 [B, N]; -1 = padding
    text: Tensor  # bool [B, N]: neither special nor padding
    classes: Tensor  # float [B, N, C], one-hot; 0 for padding
    own: Tensor  # bool [B, N (query), N (key)]: both are the same known token of the text; also on the diagonal

    @classmethod
    def of(cls, windows: Sequence[Window]) -> Batch:
        """Make the tensors of a batch from its windows, padded on the right."""
        ids = padded([each.tokens.ids for each in windows], -1)
        codes = padded([classify_tokens(each.tokens) for each in windows], -1)
        text = (codes >= 0) & (codes != START) & (codes != SEPARATOR)
        classes = one_hot(codes.clamp(min=0), len(CLASSES)).float() * (codes >= 0)[..., None]
        known = text & (padded([each.tokens.unknown or [False] * len(each.tokens.ids) for each in windows], 1) == 0)
        own = (ids[:, :, None] == ids[:, None, :]) & known[:, :, None] & known[:, None, :]
        return cls(windows, ids, text, classes, own)


def measured(
    model: Pretrained, windows: Sequence[Window], only: Sequence[int | str] | None, kept: int, length: int
) -> list[LayerSums]:
    """Let the model read a batch; return the sums of each layer over the batch.

    They hold all pairs of tokens, not only the heaviest, so that sums do not depend on the process that makes them.

    Raises:
        RecordError: no self-attention was recorded.
    """
    with watch(model.model, only=None if only is None else list(only)) as seen:
        model.read([each.tokens for each in windows])
    if not len(seen):
        said = [f"{site.name} was {site.status}: {site.how}" for site in seen.coverage()][:1] or seen.coverage().notes
        raise RecordError(f"a profile needs attention: none was recorded. {'. '.join(said)}")
    batch = Batch.of(windows)
    found = []
    for number, record in enumerate(seen):
        heads = record.shape[1]
        name = record.site.name if record.site else str(number)
        found.append(LayerSums(name, heads, kept, pairs=PairSketch(heads, capacity=ALL)))
        measure(found[-1], record, batch, length)
    del seen, record
    gc.collect(1)  # records of `headwise.watch` are in cycles, which Python would keep until there are many
    return found


def measure(sums: LayerSums, record: AttentionRecord, batch: Batch, length: int) -> None:
    """Add to `sums` a layer's record [B, H, N, N] of a batch of windows of at most `length` tokens.

    Raises:
        RecordError: the record is not self-attention.
    """
    self_attention([record], "a profile")
    heads, size = record.shape[1], record.shape[3]
    statistics = record.statistics(*OF_RECORDS, "lse", "offset_mass")
    for name, x in zip(("previous", "previous_rows"), previous_token(statistics, batch.ids >= 0), strict=True):
        sums.add(name, x)
    rows = torch.stack([getattr(statistics, name).float().cpu() for name in OF_RECORDS])  # [S, B, H, N]
    step = max(1, CELLS // max(1, record.shape[0] * size * size))
    for first in range(0, heads, step):
        some = slice(first, min(heads, first + step))
        weights = record.weights(heads=list(range(heads))[some]).float().cpu()
        seen = (weights > 0).any(1)
        if first == 0:
            _add_shared(sums, seen, batch)
        _add_heads(sums, weights, seen.sum(-1).clamp(min=1), batch, some, rows[:, :, some], length)


def _add_shared(sums: LayerSums, seen: Tensor, batch: Batch) -> None:
    """Add the numbers that are the same for all heads: counts, and even attention.

    `seen`: bool [B, N (query), N (key)], True = the query may attend to the key.
    """
    visible = seen.sum(-1).clamp(min=1)  # [B, N]
    text = batch.text
    even = (seen.float() @ batch.classes) / visible[..., None]  # [B, N, C]
    asking = batch.classes * text[..., None]
    sums.add("rows", text.sum())
    sums.add("visible", visible.double().log()[text].sum())
    sums.add("class_rows", asking.sum((0, 1)))
    sums.add("even", torch.einsum("bqc,bqd->cd", asking, even))
    for name, cells in _repeats(batch).items():
        sums.add(f"{name}_rows", cells.any(-1).sum())
        if name == "induction":
            sums.add("induction_even", ((cells & seen).sum(-1) / visible).sum())


def _repeats(batch: Batch) -> dict[str, Tensor]:
    """Find the keys at which the text repeats the query's token: three tensors bool [B, N (query), N (key)], by name.

    "same": the key is the query's token, at another position. "duplicate": at an earlier one.
    "induction": the key comes directly after an earlier position of the query's token.
    """
    before = batch.own.tril(-1)
    followed = torch.zeros_like(before)
    followed[:, :, 1:] = before[:, :, :-1]
    followed &= (batch.text[:, :, None] & batch.text[:, None, :]).tril(-1)  # not the query itself
    places = torch.arange(batch.ids.shape[1])
    return {"same": batch.own & (places[:, None] != places), "duplicate": before, "induction": followed}


def _add_heads(
    sums: LayerSums, weights: Tensor, visible: Tensor, batch: Batch, some: slice, rows: Tensor, length: int
) -> None:
    """Add the numbers of the heads `some` to the sums.

    `weights` [B, h, N, N]; `visible` [B, N]: how many keys a query sees; `rows` [S, B, h, N]: statistics `OF_RECORDS`.
    """
    text = batch.text
    by_class = weights @ batch.classes[:, None]  # [B, h, N, C]
    asking = batch.classes * text[..., None]
    sums.add("classes", torch.einsum("bqc,bhqd->hcd", asking, by_class), some)

    within = weights * (text[:, None, :, None] & text[:, None, None, :])  # from the text to the text
    sums.add("offsets", _by_offset(within), some)
    for name, cells in _repeats(batch).items():
        sums.add(name, torch.einsum("bhqk,bqk->h", within, cells.float()), some)
        if name == "same":
            sums.add("same_text", torch.einsum("bhqk,bq->h", within, cells.any(-1).float()), some)

    within.diagonal(dim1=-2, dim2=-1).zero_()
    largest, keys = within.max(-1)  # [B, h, N]
    special = by_class[..., [START, SEPARATOR]].sum(-1)
    columns = torch.cat([rows, torch.stack([special, largest])])  # [S, B, h, N]
    asked = columns.permute(0, 2, 1, 3)[:, :, text]  # [S, h, rows]
    sums.add("means", asked.double().sum(-1).T, some)
    counts = [each.counts(asked[i], length) for i, each in enumerate(MEASURES)]
    sums.add("histograms", torch.stack(counts, 1).view(-1, len(MEASURES), BINS), some)

    _add_pairs(sums, largest, keys, batch, some)
    _add_examples(sums, weights, largest, keys, visible, batch, some)


def _by_offset(within: Tensor) -> Tensor:
    """Sum the weights [B, h, N, N] by relative position, in the order of `bins.OFFSETS`: [h, 2 NEAR + 3]."""
    size = within.shape[-1]
    total = within.sum(0)  # [h, N, N]
    near = [
        total.diagonal(d, dim1=-2, dim2=-1).sum(-1) if abs(d) < size else torch.zeros(len(total))
        for d in range(-NEAR, NEAR + 1)
    ]
    left, right = total.tril(-NEAR - 1).sum((-2, -1)), total.triu(NEAR + 1).sum((-2, -1))
    return torch.stack([left, *near, right], dim=-1)


def _add_pairs(sums: LayerSums, largest: Tensor, keys: Tensor, batch: Batch, some: slice) -> None:
    """Add one pair of tokens for each query: the query, and the other token of the text to which it attends most."""
    queries = batch.ids[:, None].expand_as(keys)
    codes = queries * SPREAD + batch.ids[:, None].expand_as(keys).gather(-1, keys)
    for place, head in enumerate(range(some.start, some.stop)):
        found = largest[:, place] > 0
        sums.pairs.add(head, codes[:, place][found], largest[:, place][found])


def _add_examples(
    sums: LayerSums, weights: Tensor, largest: Tensor, keys: Tensor, visible: Tensor, batch: Batch, some: slice
) -> None:
    """Add the query with the highest score in each window, if it is among the best examples of its head."""
    score = largest * (largest * visible[:, None]).clamp(min=1e-30).log()
    best, query = score.max(-1)  # [B, h]
    for place, head in enumerate(range(some.start, some.stop)):
        kept = sums.examples[head]
        for row in best[:, place].argsort(descending=True, stable=True).tolist():
            value = round(best[row, place].item(), 4)  # so that rounding errors do not decide
            if value <= 0 or value < kept.least():
                break
            window, q = batch.windows[row], int(query[row, place])
            line = weights[row, place, q, : len(window.tokens.ids)].tolist()
            key = int(keys[row, place, q])
            kept.add(Example(window, q, key, value, tuple(round(x, 4) for x in line)))
