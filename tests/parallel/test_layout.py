"""Who holds which rows: every row once, equally many cells and rows, and few keys that travel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import headwise
from headwise import masks, parallel
from headwise.errors import ArgumentError, ShapeError
from headwise.masks import Mask
from headwise.masks.picked import picked

MASKS: dict[str, Callable[[int], Mask | None]] = {
    "none": lambda n: None,
    "causal": lambda n: masks.causal(),
    "window": lambda n: masks.window(100, 0),
    "packed": lambda n: masks.documents(torch.arange(n) ** 2 // (n * n // 7)) & masks.causal(),
    "prefix": lambda n: masks.prefix(n // 3),
    "global tokens": lambda n: masks.global_tokens(list(range(20))) | masks.window(64, 64),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("processes", [1, 2, 7, 64])
def test_every_process_has_as_many_cells(name: str, processes: int) -> None:
    length = 6000
    mask = MASKS[name](length)
    layout = parallel.deal(mask, length, processes)
    rows = torch.cat(layout.positions)
    assert torch.equal(rows.sort().values, torch.arange(length))
    allowed = torch.ones(length, length) if mask is None else mask.to_bool(length)[0, 0].float()
    cells = torch.stack([allowed[positions].sum() for positions in layout.positions])
    most = 1.06 if name != "global tokens" or processes < 64 else 1.3  # a row is not cut, and there are 20 long ones
    assert cells.max() / cells.mean() <= most
    counts = [len(positions) for positions in layout.positions]
    assert max(counts) - min(counts) <= max(64, 0.1 * length / processes)


def test_by_hand() -> None:
    """Eight rows of a causal mask: 1 + 8, 2 + 7, 3 + 6, 4 + 5 cells. A window: neighbours stay together."""
    pairs = parallel.deal(masks.causal(), 8, 4)
    assert pairs.way == "in pairs"
    assert [positions.tolist() for positions in pairs.positions] == [[0, 7], [1, 6], [2, 5], [3, 4]]
    near = parallel.deal(masks.window(1, 1), 64, 4)
    assert near.way == "in order"
    assert [len(positions) for positions in near.positions] == [16] * 4
    plan = parallel.on_paper(masks.window(1, 1), 64, 4, heads=2, dim=8)
    assert plan.sizes.keys.tolist() == [1, 2, 2, 1]
    assert plan.costs["gather"].sent == 2 * (2 * (8 + 8) * 4)  # two keys: two heads of 8 + 8 float32


def test_windows_and_packed_documents_are_cut_where_the_cells_are_even() -> None:
    """The first rows of a causal window see fewer keys, and documents have unlike lengths: then rows are uneven."""
    first, second = (parallel.on_paper(masks.window(1023, 0), 8192, 2).sizes.rows).tolist()
    assert 1.01 * second < first < 1.1 * second
    ids = torch.arange(80).repeat_interleave(torch.arange(80) * 37 % 80 * 5 + 1)
    for mask, length in ((masks.window(1023, 0), 8192), (masks.documents(ids), len(ids))):
        plan = parallel.on_paper(mask, length, 2)
        assert plan.layout.way == "in order"
        assert plan.sizes.cells.max() <= 1.05 * plan.sizes.cells.mean()
        assert plan.sizes.keys.max() < length / 7


@pytest.mark.parametrize(("length", "processes"), [(8, 4), (37, 4), (5, 4), (1, 3), (5000, 7)])
def test_chunks_are_those_of_torch(length: int, processes: int) -> None:
    """Of five rows in four processes the last has none."""
    layout = parallel.chunks(length, processes)
    parts = list(torch.arange(length).chunk(processes))
    parts += [torch.arange(0)] * (processes - len(parts))
    assert all(map(torch.equal, layout.positions, parts))
    plan = parallel.on_paper(masks.causal(), length, processes, layout=layout)
    assert plan.sizes.rows.tolist() == [len(part) for part in parts]
    with pytest.raises(ArgumentError, match="expected at least one row and one process"):
        parallel.chunks(0, processes)


def test_keys_that_nobody_may_see_do_not_travel() -> None:
    apart = parallel.on_paper(masks.documents([0] * 64 + [1] * 64), 128, 2)
    assert apart.sizes.keys.tolist() == [0, 0]
    assert parallel.on_paper(None, 128, 2).sizes.keys.tolist() == [64, 64]


def test_parts_come_together_again() -> None:
    layout = parallel.deal(masks.causal(), 13, 3)
    x = torch.randn(2, 13, 4)
    assert torch.equal(layout.joined([layout.shard(x, p) for p in range(3)]), x)
    with pytest.raises(ShapeError, match=r"expected 13 positions, the length that was dealt. Received: x=\[2, 12, 4\]"):
        layout.shard(x[:, :12], 0)


def test_a_plan_is_read_and_printed() -> None:
    plan = parallel.on_paper(masks.causal(), 4096, 4, heads=8, key_heads=2, dim=64, dtype=torch.bfloat16)
    assert plan.idle < 0.01
    assert plan.bytes == plan.costs[plan.strategy].sent
    lines = str(plan).splitlines()
    assert lines[0].split() == ["sequence", "4,096", "rows,", "4", "processes,", "dealt", "'in", "pairs'"]
    assert len(lines) == 2 + 3 + 1 + 4
    far = parallel.on_paper(masks.causal(), 4096, 3, heads=8, key_heads=2)
    assert "heads       refuses" in str(far)
    assert "ring        refuses" in str(parallel.on_paper(masks.causal(), 64, 4))  # its parts are too small


def test_what_cannot_be_dealt() -> None:
    with pytest.raises(ArgumentError, match=r"expected at least one row for each process\. Received: length=3"):
        parallel.deal(None, 3, 4)
    with pytest.raises(ArgumentError, match="layout: expected one of 8 rows and 2 processes"):
        parallel.on_paper(None, 8, 2, layout=parallel.deal(None, 9, 2))


@pytest.mark.parametrize("name", MASKS)
def test_a_picked_mask_is_the_mask_of_some_rows_and_keys(name: str) -> None:
    mask = MASKS[name](200)
    if mask is None:
        return
    rows, cols = torch.tensor([*range(3, 60), *range(120, 131), 199]), torch.tensor([*range(50), 77, *range(90, 180)])
    whole = mask.aligned(200, 200)
    some = picked(whole, rows, cols)
    expected = whole.to_bool(200)[:, :, rows][..., cols]
    assert torch.equal(some.to_bool(len(rows), len(cols)), expected)
    codes = some.blocks(len(rows), len(cols), 16)
    for i, strip in enumerate(expected[0, 0].split(16)):
        for j, block in enumerate(strip.split(16, 1)):
            code = int(codes[0, 0, i, j])
            assert code == 1 or bool(block.all() if code == 2 else ~block.any())
    q, k = torch.randn(1, 2, len(rows), 8), torch.randn(1, 2, len(cols), 8)
    found = headwise.attention(q, k, k, mask=some)
    torch.testing.assert_close(found, headwise.attention(q, k, k, mask=expected), atol=1e-5, rtol=1e-5)


def test_a_picked_mask_without_gaps_stays_a_band() -> None:
    some = picked(masks.window(3, 0, offset=0), torch.arange(10, 20), torch.arange(5, 25))
    assert some.band() == (2, 5)
    assert torch.equal(some.to_bool(10, 20)[0, 0], masks.window(3, 0, offset=0).to_bool(25)[0, 0][10:20, 5:25])
