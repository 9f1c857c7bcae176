"""The plan: what runs, why not the others, and FLOP figures that agree with a count by hand."""

from __future__ import annotations

import pytest
import torch

import headwise
from headwise import masks
from headwise.kernels import native
from headwise.kernels.kernel import Blocks
from headwise.tiles import band
from tests.largest import Largest

N = 1024


@pytest.fixture(autouse=True)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The instruction set of the native kernels that the plan reckons with; None = they are not there."""
    name = getattr(request, "param", None)
    monkeypatch.setattr(native, "instruction_set", lambda: name)
    monkeypatch.setattr(native.attend, "refuse", lambda call: None if name else "it was not compiled")


with_native = pytest.mark.parametrize("instruction_set", ["avx512"], indirect=True)


def plan_for(mask: masks.Mask | None, length: int = N, **options: object) -> headwise.kernels.Plan:  # type: ignore[name-defined]
    q = torch.empty(1, 4, length, 64)
    return headwise.plan(q, q, q, mask=mask, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mask", "kernel"),
    [
        (None, "sdpa"),
        (masks.causal(), "sdpa"),
        (masks.window(64, 0), "tiled, band"),
        (masks.causal() & masks.window(100, 100), "tiled, band"),
        (masks.documents(torch.arange(8192) // 512), "tiled, documents"),
        (masks.documents(torch.arange(8192) // 512) & masks.causal(), "tiled, documents"),
        (masks.window(64, 64) | masks.global_tokens([0]), "tiled, blocks"),
        (masks.big_bird(8192), "tiled, blocks"),
        (masks.prefix(100), "tiled, blocks"),
    ],
    ids=repr,
)
def test_the_cheapest_kernel_that_can_is_chosen(mask: masks.Mask | None, kernel: str) -> None:
    plan = plan_for(mask, 8192)
    assert (f"{plan.kernel}, {plan.cutter}" if plan.cutter else plan.kernel) == kernel


@with_native
@pytest.mark.parametrize(
    ("mask", "options"),
    [
        (None, {}),
        (masks.causal(), {}),
        (masks.window(255, 0), {}),
        (masks.documents(torch.arange(8192) // 500), {}),
        (masks.causal(), {"softcap": 30.0, "dropout": 0.1}),
        (masks.big_bird(8192), {"sinks": torch.zeros(4)}),
    ],
    ids=repr,
)
def test_the_native_kernel_is_chosen_where_it_is_quickest(mask: masks.Mask | None, options: dict[str, object]) -> None:
    assert plan_for(mask, 8192, **options).kernel == "native"


@with_native
def test_what_is_small_is_left_to_torch_and_a_step_whose_heads_share_keys_is_not() -> None:
    assert plan_for(masks.window(16, 0), 64).kernel == "sdpa"
    q, k = torch.empty(1, 8, 1, 64), torch.empty(1, 2, 65536, 64)
    assert headwise.plan(q, k, k).kernel == "native"
    k = k[:, :, :4096]
    assert headwise.plan(q, k, k).kernel == "decode"
    assert headwise.plan(q, k, k, mask=masks.padding(torch.arange(4096)[None] > 9)).kernel == "decode"
    assert headwise.plan(q, k, k, sinks=torch.zeros(8)).kernel == "native"
    assert headwise.plan(q, *[torch.empty(1, 8, 4096, 64)] * 2).kernel == "sdpa"


@with_native
@pytest.mark.parametrize(("batch", "length"), [(100, 30), (8, 256), (2, 1024)])
def test_training_in_half_precision_is_not_left_to_torch(batch: int, length: int) -> None:
    q = torch.empty(batch, 4, length, 64)
    for mask in (None, masks.padding(torch.arange(length).expand(batch, -1) < length - 2)):
        with torch.no_grad():
            assert headwise.plan(*[q.bfloat16()] * 3, mask=mask).kernel in ("sdpa", "native")
        given = q.bfloat16().requires_grad_()
        assert headwise.plan(given, given, given, mask=mask).kernel == "native"
    small = q.requires_grad_()
    if length == 30:
        assert headwise.plan(small, small, small).kernel == "sdpa"


def test_a_decoding_step_whose_heads_share_keys_reads_them_once() -> None:
    q, k = torch.empty(1, 8, 1, 64), torch.empty(1, 2, 4096, 64)
    for mask in (None, masks.causal()):
        step = headwise.plan(q, k, k, mask=mask)
        assert step.kernel == "decode"
        assert step.cost.flops == 8 * 4096 * 4 * 64
    assert headwise.plan(q, torch.empty(1, 8, 4096, 64), torch.empty(1, 8, 4096, 64)).kernel == "sdpa"
    assert headwise.plan(torch.empty(1, 8, 2, 64), k, k).kernel == "sdpa"
    long = torch.empty(1, 2, 65536, 64)
    assert headwise.plan(q, long, long, mask=masks.window(63, 0)).kernel == "tiled"  # reads 64 keys


def test_on_a_gpu_torch_groups_the_heads_of_one_query_itself() -> None:
    q, k = torch.empty(1, 8, 1, 64, device="meta"), torch.empty(1, 2, 65536, 64, device="meta")
    for mask in (None, masks.causal()):
        step = headwise.plan(q, k, k, mask=mask)
        assert step.kernel == "sdpa"
        assert all(each.cost is None or each.cost.time >= step.cost.time for each in step.verdicts)


def test_on_a_gpu_slopes_are_computed_where_they_are_used_and_not_written_as_a_matrix() -> None:
    q, slopes = torch.empty(1, 12, 8192, 64, device="meta"), torch.empty(12, device="meta")
    assert headwise.plan(q, q, q).kernel == "sdpa"
    assert headwise.plan(q, q, q, slopes=slopes).kernel == "flex"
    cpu = torch.empty(1, 12, 2048, 64)
    assert headwise.plan(cpu, cpu, cpu, slopes=torch.ones(12)).kernel != "flex"


def test_a_decoding_step_with_a_window_touches_only_the_window() -> None:
    q, k = torch.empty(1, 4, 1, 64), torch.empty(1, 4, 4096, 64)
    step = headwise.plan(q, k, k, mask=masks.window(255, 0))
    assert step.kernel == "tiled"
    assert step.cost.flops == 4 * 256 * 4 * 64  # heads · keys · (2 · D + 2 · E)


def test_heights_that_cut_alike_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int | None] = []
    cut = band.cut
    monkeypatch.setattr(band, "cut", lambda *given: tried.append(given[-1]) or cut(*given))
    assert plan_for(masks.window(16, 0), 128, kernel="tiled").kernel == "tiled"
    assert tried == [256, 64]  # 768 queries are all of them too


def test_dense_flops_by_hand() -> None:
    plan = plan_for(None)
    assert plan.cost.flops == plan.dense_flops == 4 * N * N * (2 * 64 + 2 * 64)
    assert plan_for(masks.causal(), kernel="sdpa").cost.flops == 4 * N * (N + 1) // 2 * 256
    q, v = torch.empty(2, 6, 10, 32), torch.empty(2, 3, 20, 48)
    assert headwise.plan(q, torch.empty(2, 3, 20, 32), v).cost.flops == 2 * 6 * 10 * 20 * (2 * 32 + 2 * 48)


def test_flops_of_a_band_and_blocks_by_hand() -> None:
    # Tiles of 64 queries; with window(64, 0) the first needs 64 keys, each of the other 15 needs 128.
    cost = plan_for(masks.window(64, 0), kernel="tiled").cost
    assert cost.flops == 4 * (64 * 64 + 15 * 64 * 128) * 256
    assert cost.blocks == Blocks(64, 64, full=0, partial=16 + 15, skipped=16 * 16 - 31)
    # window(127, 0): the block left of the diagonal is seen whole, the one before it in part.
    cost = plan_for(masks.window(127, 0), kernel="tiled").cost
    assert cost.blocks == Blocks(64, 64, full=15, partial=16 + 14, skipped=16 * 16 - 45)


@pytest.mark.parametrize("lengths", [(1024, 1024), (100, 1000), (1000, 130), (64, 64)], ids=str)
@pytest.mark.parametrize(
    "mask",
    [masks.window(64, 0), masks.window(127, 70), masks.causal(), masks.causal(offset=-70), masks.window(0, 0)],
    ids=repr,
)
def test_the_blocks_of_a_band_are_those_of_its_grid(mask: masks.Mask, lengths: tuple[int, int]) -> None:
    q, k = torch.empty(1, 1, lengths[0], 8), torch.empty(1, 1, lengths[1], 8)
    blocks = headwise.plan(q, k, k, mask=mask, kernel="tiled").cost.blocks
    codes = mask.blocks(*lengths, blocks.height, blocks.width)
    assert blocks == Blocks(blocks.height, 64, *[int((codes == extent).sum()) for extent in (2, 1, 0)])


def test_flops_of_documents_and_blocks_by_hand() -> None:
    cost = plan_for(masks.documents(torch.arange(N) // 256), kernel="tiled").cost
    assert cost.flops == 4 * 4 * 256 * 256 * 256  # heads · documents · 256² cells · (2 D + 2 E)
    layout = torch.eye(16, dtype=torch.bool)
    layout[3, 9] = True
    cost = plan_for(masks.block_sparse(layout, 64), kernel="tiled").cost
    assert cost.flops == 4 * 17 * 64 * 64 * 256
    assert cost.blocks == Blocks(64, 64, full=17, partial=0, skipped=16 * 16 - 17)


def test_a_mask_that_sdpa_can_express_is_not_made_dense() -> None:
    output = 4 * N * 64 * 4
    for mask in (None, masks.causal(), masks.lengths([700]), masks.window(None, None), masks.prefix(N)):
        assert plan_for(mask, kernel="sdpa").cost.peak == output
    assert plan_for(masks.window(64, 0), kernel="sdpa").cost.peak == output + N * N * (1 + 4)


@pytest.mark.parametrize(
    "mask",
    [
        None,
        masks.causal(),
        masks.lengths([3000]),
        masks.padding(torch.arange(4096)[None] > 500),
        masks.causal() & masks.window(100, 0),
        masks.documents(torch.arange(4096) // 500) & masks.causal(),
        masks.prefix(700),
        masks.big_bird(4096),
        masks.window(64, 64) | masks.global_tokens([0]),
        masks.from_predicate(lambda b, h, q, k: (q - k) % 97 < 40) & masks.window(200, 0),
    ],
    ids=repr,
)
def test_no_call_makes_anything_of_the_size_of_the_matrix(mask: masks.Mask | None) -> None:
    q = torch.randn(1, 1, 4096, 8, requires_grad=True)
    with Largest() as largest:
        plan = headwise.plan(q, q, q, mask=mask)
        headwise.attention(q, q, q, mask=mask).sum().backward()
    assert plan.cost.peak < 4096 * 4096
    assert largest.bytes < 4096 * 4096  # a bool mask would have as many, a float mask four times as many


def test_the_plan_reads_like_explain() -> None:
    q = torch.empty(1, 4, 8192, 64)
    lines = str(headwise.plan(q, q, q, mask=masks.causal() & masks.window(256, 0))).splitlines()
    assert lines[:4] == [
        "call            q [1, 4, 8192, 64]  k [1, 4, 8192, 64]  v [1, 4, 8192, 64]",
        "                float32 on cpu",
        "mask            causal(offset=0) & window(256, 0, offset=0)",
        "kernel          tiled, the mask cut by 'band'",
    ]
    assert lines[4] == "  flops         2.64 GFLOP, 3.8% of the dense 68.7 GFLOP"
    assert lines[5] == "  speed         about 50% of a matrix product (nominal; `headwise bench` measures it)"
    assert lines[8] == "  blocks        378 full, 252 partial, 15,754 skipped (of 64 × 64)"
    assert any(line.startswith("  sdpa          could, at ") and "335 MB at the peak" not in line for line in lines)
    assert "  decode        refuses: it is for one query a head (the call has Q = 8192)" in lines
    small = torch.ones(1, 1, 1, 8)
    assert "  speed         less than 1% of a matrix product" in str(headwise.plan(small, small, small))


def test_the_plan_counts_the_blocks_of_the_mask_where_the_kernel_counts_none() -> None:
    plan = plan_for(masks.documents(torch.arange(N) // 256), kernel="tiled")
    assert "  blocks        of the mask: 64 full, 0 partial, 192 empty (64 × 64)" in str(plan)
    plan = plan_for(masks.causal(), kernel="sdpa")
    assert "  blocks        of the mask: 120 full, 16 partial, 120 empty (64 × 64)" in str(plan)
    assert "blocks" not in str(plan_for(None))


def test_every_refusal_names_its_cause() -> None:
    q = torch.empty(1, 4, 100, 64)
    plan = headwise.plan(q, q, q, mask=masks.window(4, 0), softcap=30.0)
    refusals = {verdict.kernel: verdict.refusal for verdict in plan.verdicts}
    assert plan.kernel == "reference"
    assert refusals["sdpa"] == refusals["tiled"] == "it has no softcap"
    assert refusals["reference"] is None
    dropped = headwise.plan(q, q, q, mask=masks.window(4, 0), dropout=0.1)
    assert {v.refusal for v in dropped.verdicts if v.kernel == "tiled"} == {"it has no dropout"}


def test_a_plan_runs_nothing_and_builds_no_matrix() -> None:
    q = torch.empty(1, 1, 2**18, 8)  # the matrix would have 2^36 cells
    plan = headwise.plan(q, q, q, mask=masks.window(256, 0))
    assert plan.kernel == "tiled"
    assert plan.cost.peak < 2**26
