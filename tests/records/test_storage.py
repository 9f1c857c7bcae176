"""Records in a file: everything comes back, each thing once, and nothing is read before it is asked for."""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from safetensors import safe_open
from safetensors.torch import save_file

import headwise
from headwise import masks
from headwise.errors import FileError, RecordError
from headwise.masks import Mask
from headwise.records import CallSite, Coverage, Extras, Seen, Site, tensor_file
from headwise.text import Patches
from tests.mask_zoo import ZOO, compositions, fits
from tests.records.forging import assert_same, forge, header_of, record


@pytest.mark.parametrize("name", [name for name in ZOO if fits(name, 10, 12)])
def test_every_mask_comes_back(name: str, tmp_path: Path) -> None:
    kept = record(ZOO[name](2, 4, 10, 12))
    Seen([kept]).save(tmp_path / "run.hw")
    (loaded,) = headwise.load(tmp_path / "run.hw", verify=True)
    assert_same(kept, loaded)
    assert "predicate" in name or loaded.mask == kept.mask


@given(compositions((2, 4, 10, 12)))
def test_compositions_come_back(tmp_path_factory: pytest.TempPathFactory, mask: Mask) -> None:
    path = tmp_path_factory.mktemp("records") / "run.hw"
    kept = record(mask)
    Seen([kept]).save(path)
    assert_same(kept, headwise.load(path)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_every_option_comes_back_in_every_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    kept = record(
        masks.causal() & masks.lengths([12, 7]),
        dtype=dtype,
        bias=torch.randn(4, 1, 12).to(dtype),
        sinks=torch.randn(4).to(dtype),
        slopes=torch.rand(4).to(dtype),
        scale=0.1,
        softcap=30.0,
        dropout=0.25,
    )
    kept.site = Site("décoder.layer.3.attn", 3, "cross", False, 4, 2, call=5)
    kept.extras = Extras(torch.randn(2, 2, 12, 6).to(dtype), torch.randn(2, 4, 10, 6), torch.randn(4, 6, 16))
    Seen([kept]).save(tmp_path / "run.hw")
    (loaded,) = headwise.load(tmp_path / "run.hw", verify=True)
    assert_same(kept, loaded)
    assert loaded.mask == kept.mask
    assert torch.equal(loaded.bias, kept.bias)  # type: ignore[arg-type]


def test_coverage_and_tokens_come_back(tmp_path: Path) -> None:
    sites = CallSite("a.b", "seen", 2, "sdpa"), CallSite("c", "refused", 1, "a bias of unknown origin")
    seen = Seen([record()], Coverage(sites, ("the fast path was turned off",)))
    seen.tokens = {
        "target": [["a", "猫", *"cdefghij"], ["k"] * 10],
        "source": [Patches(3, 4, ()), ["x"] * 12],
    }
    seen.save(tmp_path / "run.hw")
    loaded = headwise.load(tmp_path / "run.hw")
    assert loaded.coverage() == seen.coverage()
    assert loaded.tokens == seen.tokens
    assert loaded.source_tokens == seen.source_tokens
    assert loaded.tokens[0].labels[1] == "猫"
    assert loaded.source_tokens[0].patches == Patches(3, 4, ())


def test_nothing_comes_back_as_nothing(tmp_path: Path) -> None:
    Seen([], Coverage(notes=("looked for scaled_dot_product_attention",))).save(tmp_path / "run.hw")
    loaded = headwise.load(tmp_path / "run.hw", verify=True)
    assert len(loaded) == 0
    assert "looked for scaled_dot_product_attention" in repr(loaded)
    assert loaded.tokens is None


def test_empty_queries_and_keys_come_back(tmp_path: Path) -> None:
    kept = [
        headwise.attention(q, k, k, mask=masks.causal(), record=True)[1]
        for q, k in ((torch.randn(1, 2, Q, 4), torch.randn(1, 2, K, 4)) for Q, K in ((0, 3), (3, 0)))
    ]
    Seen(kept).save(tmp_path / "run.hw")
    assert [each.shape for each in headwise.load(tmp_path / "run.hw")] == [(1, 2, 0, 3), (1, 2, 3, 0)]


def test_what_records_share_is_stored_once_and_shared_again(tmp_path: Path) -> None:
    q, k, bias = torch.randn(1, 2, 64, 8), torch.randn(1, 2, 64, 8), torch.randn(1, 1, 64, 64)
    allowed = torch.rand(64, 64) > 0.5
    kept = [
        headwise.attention(q + i, k, k, mask=masks.from_tensor(allowed.clone()), bias=bias, record=True)[1]
        for i in range(10)
    ]
    Seen(kept[:1]).save(tmp_path / "one.hw")
    Seen(kept).save(tmp_path / "ten.hw")
    grown = (tmp_path / "ten.hw").stat().st_size - (tmp_path / "one.hw").stat().st_size
    assert 9 * q.nbytes <= grown < 10 * q.nbytes  # the other nine queries, and what is said of them
    loaded = headwise.load(tmp_path / "ten.hw").records
    assert len({id(each.mask) for each in loaded}) == 1
    assert len({each.k.data_ptr() for each in loaded}) == 1
    assert len({each.q.data_ptr() for each in loaded}) == 10


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Among(Mask):
    """A mask that headwise does not know, and that cannot be hashed."""

    keys: list[int]

    def allows(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return functools.reduce(operator.or_, [(k == key) | (q != q) for key in self.keys])


def test_a_mask_of_somebody_else_comes_back_as_its_answers(tmp_path: Path) -> None:
    kept = record(Among([1, 5]) & masks.causal())
    Seen([kept, kept]).save(tmp_path / "run.hw")
    loaded = headwise.load(tmp_path / "run.hw")
    assert_same(kept, loaded.call(1)[0])
    assert loaded.records[0].mask is loaded.records[1].mask


def test_repetition_that_broadcasting_makes_is_not_stored(tmp_path: Path) -> None:
    q = torch.randn(4, 8, 32, 4)
    kept = headwise.attention(q, q, q, bias=torch.randn(1, 8, 32, 32).expand(4, 8, 32, 32), record=True)[1]
    Seen([kept]).save(tmp_path / "run.hw")
    (loaded,) = headwise.load(tmp_path / "run.hw")
    assert loaded.bias.shape == (1, 8, 32, 32)
    assert_same(kept, loaded)


def test_tensors_that_are_not_contiguous_are_written_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_file, "PIECE", 100)  # bytes: less than one row
    q = torch.randn(2, 10, 4, 8).transpose(1, 2)
    k = torch.randn(2, 4, 12, 16)[..., ::2]
    kept = headwise.attention(q, k, k, record=True)[1]
    Seen([kept]).save(tmp_path / "run.hw")
    assert_same(kept, headwise.load(tmp_path / "run.hw", verify=True)[0])


@pytest.mark.gpu
def test_records_on_a_gpu_are_saved_from_there(tmp_path: Path) -> None:
    q = torch.randn(1, 2, 16, 8, device="cuda")
    kept = headwise.attention(q, q, q, mask=masks.lengths(torch.tensor([9], device="cuda")), record=True)[1]
    Seen([kept]).save(tmp_path / "run.hw")
    torch.testing.assert_close(headwise.load(tmp_path / "run.hw")[0].weights(), kept.weights().cpu())


def test_other_programs_can_read_the_tensors(tmp_path: Path) -> None:
    kept = record(masks.lengths([12, 5]))
    Seen([kept]).save(tmp_path / "run.hw")
    with safe_open(tmp_path / "run.hw", "pt") as file:
        assert set(file.keys()) == {"records.0.q", "records.0.k", "masks.0.lengths"}
        assert torch.equal(file.get_tensor("records.0.q"), kept.q)
        assert file.get_tensor("masks.0.lengths").tolist() == [12, 5]
        assert file.metadata()["headwise"] == "1"


def test_a_record_that_was_changed_is_not_saved(tmp_path: Path) -> None:
    kept = record()
    kept.q.add_(1)
    with pytest.raises(RecordError, match="changed in place"):
        Seen([kept]).save(tmp_path / "run.hw")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_others_is_not_replaced(tmp_path: Path) -> None:
    notes, weights = tmp_path / "notes.hw", tmp_path / "model.safetensors"
    notes.write_text("mine")
    save_file({"w": torch.zeros(2)}, weights)
    seen = Seen([record(masks.causal())])
    for path in (notes, weights):
        before = path.read_bytes()
        with pytest.raises(FileError, match="exists, and headwise did not write it"):
            seen.save(path)
        assert path.read_bytes() == before
    for _ in range(2):
        seen.save(tmp_path / "run.hw")  # also over its own file


def test_a_dtype_that_the_format_does_not_have_is_refused(tmp_path: Path) -> None:
    kept = record()
    kept.extras = Extras(output_weight=torch.zeros(4, 6, 2, dtype=torch.complex64))
    with pytest.raises(RecordError, match=r"records\.0\.output_weight cannot be saved.*complex64"):
        Seen([kept]).save(tmp_path / "run.hw")
    assert list(tmp_path.iterdir()) == []


def test_a_file_may_be_saved_onto_itself(tmp_path: Path) -> None:
    kept = record()
    Seen([kept]).save(tmp_path / "run.hw")
    loaded = headwise.load(tmp_path / "run.hw")
    loaded.save(tmp_path / "run.hw")
    assert_same(kept, loaded[0])
    assert_same(kept, headwise.load(tmp_path / "run.hw", verify=True)[0])


def test_a_place_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere" / "run.hw", tmp_path):
        with pytest.raises(FileError, match="cannot write"):
            Seen([record()]).save(path)
    assert list(tmp_path.iterdir()) == []


# --- What is read, and when -------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A record of 2 GB of queries and keys, of which the disk holds almost nothing: they are all 0."""
    path = tmp_path / "large.hw"
    q, k = torch.zeros(2, 1, 1, 4, 64)
    Seen([headwise.attention(q, k, k, mask=masks.causal(), record=True)[1]]).save(path)
    header, _ = header_of(path)
    length = 2**22
    size = length * 64 * 4
    for place, name in enumerate(("records.0.q", "records.0.k")):
        header[name].update(shape=[1, 1, length, 64], data_offsets=[place * size, (place + 1) * size])
    forge(path, header, size=2 * size)
    return path


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_a_file_of_2_gb_is_opened_without_reading_it(large: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    assert large.stat().st_size > 2**31
    headwise.load(large)  # whatever is imported and allocated the first time
    before = resident()
    seen = headwise.load(large)
    assert seen[0].shape == (1, 1, 2**22, 2**22)
    assert "1 layer" in repr(seen)
    assert resident() - before < 2**22
    assert seen[0].q[0, 0, 2**20 : 2**20 + 100].sum() == 0  # some rows are read where they are asked for
    assert resident() - before < 2**23


def test_what_is_changed_in_memory_does_not_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.hw"
    Seen([record(), record()]).save(path)
    before = path.read_bytes()
    first, second = headwise.load(path)
    first.q.fill_(0.0)
    with pytest.raises(RecordError, match="changed in place"):
        first.weights()
    assert second.weights() is not None  # only the one that was changed
    assert path.read_bytes() == before


def test_every_tensor_begins_where_it_may_be_used(tmp_path: Path) -> None:
    kept = [record(masks.from_tensor(torch.rand(10, 12) > 0.5), dtype=torch.float64), record(dtype=torch.float16)]
    kept.append(record(masks.padding(torch.rand(2, 12) > 0.2)))
    Seen(kept).save(tmp_path / "run.hw")
    assert (8 + int.from_bytes((tmp_path / "run.hw").read_bytes()[:8], "little")) % 64 == 0
    for each in headwise.load(tmp_path / "run.hw"):
        assert each.q.data_ptr() % each.q.itemsize == 0


# --- Interrupted ------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys, torch, headwise
from headwise.records import Seen, tensor_file

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "half":
    pieces = tensor_file._pieces
    def half(x):
        yield from pieces(x[..., : x.shape[-1] // 2].contiguous())
        die()
    tensor_file._pieces = half
else:
    os.replace = die
q = torch.ones(1, 2, 500, 64)
Seen([headwise.attention(q, q, q, record=True)[1]]).save(sys.argv[1])
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize("moment", ["half", "renamed"])
def test_a_process_killed_while_saving_leaves_the_old_file(tmp_path: Path, moment: str) -> None:
    kept, path = record(), tmp_path / "run.hw"
    Seen([kept]).save(path)
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), moment], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    (part,) = set(tmp_path.iterdir()) - {path}  # it had begun
    assert part.stat().st_size > 1000
    assert path.read_bytes() == before
    assert_same(kept, headwise.load(path, verify=True)[0])
    Seen([kept]).save(path)
    assert list(tmp_path.iterdir()) == [path]  # what it left is gone


def test_an_error_while_saving_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Seen([record()]).save(tmp_path / "run.hw")
    before = (tmp_path / "run.hw").read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FileError, match="No space left on device"):
        Seen([record()]).save(tmp_path / "run.hw")
    assert (tmp_path / "run.hw").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
