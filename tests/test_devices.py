"""What runs on a GPU, against float64 on the CPU. Each test also runs on the CPU, to show that it tests something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import scaled_dot_product_attention

import headwise
from headwise import Int8, edits, masks, parallel, tasks
from headwise.errors import KernelRefused
from headwise.masks import Mask
from headwise.models.language_model import CausalConfig, CausalLanguageModel
from headwise.nn import Cache
from headwise.profiles import profile
from tests.profiles.tiny import VOCABULARY, encode

pytestmark = [
    # torch's own, in the first backward pass and the first compilation of a process.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),
]

B, H, G, N, D = 2, 4, 2, 256, 64
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def qkv(queries: int = N, keys: int = N, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(1)
    sizes = ((B, H, queries, D), (B, G, keys, D), (B, G, keys, D))
    return [torch.randn(size, generator=drawn, dtype=torch.float64).to(dtype) for size in sizes]


def near(found: Tensor, expected: Tensor, tolerance: float = 2e-3) -> None:
    assert expected.abs().max() > 10 * tolerance
    torch.testing.assert_close(found.detach().cpu().double(), expected.double(), rtol=tolerance, atol=tolerance)


# What a kernel is not for is refused, and tested elsewhere.
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ("auto", ("bias", "slopes", "softcap", "sinks")),
        ("flex", ("bias", "slopes", "softcap", "sinks")),
        ("reference", ("bias", "slopes", "softcap", "sinks")),
        ("sdpa", ("bias", "slopes")),
        ("tiled", ("bias", "slopes", "sinks")),
    ],
)
def test_every_option_and_rows_that_may_attend_to_nothing(kernel: str, options: tuple[str, ...], device: str) -> None:
    trains = (kernel, device) != ("flex", "cpu")
    drawn = torch.Generator().manual_seed(2)
    every = {
        "bias": torch.randn(B, H, N, N, generator=drawn, dtype=torch.float64),
        "slopes": torch.rand(H, generator=drawn, dtype=torch.float64),
        "softcap": 5.0,
        "sinks": torch.randn(H, generator=drawn, dtype=torch.float64),
    }
    given = {name: every[name] for name in options}
    mask = masks.causal(offset=-3) & masks.lengths([N, 100])  # the first three queries see nothing
    inputs = [x.requires_grad_(trains) for x in qkv()]
    expected = headwise.attention(*inputs, mask=mask, kernel="reference", **given)
    there = [x.detach().float().to(device).requires_grad_(trains) for x in inputs]
    if (kernel, device) == ("tiled", "cuda"):
        with pytest.raises(KernelRefused, match="it runs on the CPU"):
            headwise.attention(*there, mask=mask.to(device), kernel=kernel)
        return
    moved = {name: x.float().to(device) if isinstance(x, Tensor) else x for name, x in given.items()}
    out = headwise.attention(*there, mask=mask.to(device), kernel=kernel, **moved)
    near(out, expected)
    assert (out[:, :, :3] == 0).all()
    if trains:
        d_out = torch.randn(expected.shape, generator=drawn, dtype=torch.float64)
        wanted = torch.autograd.grad(expected, inputs, d_out)
        found = torch.autograd.grad(out, there, d_out.float().to(device))
        for mine, true in zip(found, wanted, strict=True):
            near(mine, true, 5e-3)
        assert (found[0][:, :, :3] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(dtype: torch.dtype, device: str) -> None:
    q, k, v = qkv(dtype=dtype)
    mask = masks.causal() & masks.window(64, 0)
    expected = headwise.attention(q.double(), k.double(), v.double(), mask=mask, kernel="reference")
    near(headwise.attention(q.to(device), k.to(device), v.to(device), mask=mask.to(device)), expected, 2e-2)


@pytest.mark.parametrize("mask", [None, masks.lengths([N, 100]), masks.causal() & masks.window(30, 0)], ids=str)
def test_decoding(mask: Mask | None, device: str) -> None:
    q, k, v = qkv(queries=1)
    expected = headwise.attention(q, k, v, mask=mask, kernel="reference")
    there, moved = [x.float().to(device) for x in (q, k, v)], mask if mask is None else mask.to(device)
    for kernel in ("auto", "decode"):
        near(headwise.attention(*there, mask=moved, kernel=kernel), expected)
    near(headwise.attention(there[0], Int8.of(there[1]), Int8.of(there[2]), mask=moved), expected, 3e-2)


def test_generating_with_a_cache(device: str) -> None:
    torch.manual_seed(0)
    model = CausalLanguageModel(CausalConfig(30, 32, 2, 2, 0.0)).double().eval()
    ids = torch.tensor([TOKENS])
    with torch.no_grad():
        expected = model(ids)
        model, cache = model.float().to(device), Cache()
        steps = [model(ids[:, i : i + 1].to(device), cache=cache) for i in range(len(TOKENS))]
    near(torch.cat(steps, 1), expected)


def test_every_statistic_of_a_record(device: str) -> None:
    q, k, v = qkv()
    mask = masks.causal(offset=-3) & masks.lengths([N, 100])
    sinks = torch.linspace(-1, 1, H)
    _, whole = headwise.attention(q, k, v, mask=mask, sinks=sinks.double(), record=True)
    there = [x.float().to(device) for x in (q, k, v)]
    _, record = headwise.attention(*there, mask=mask.to(device), sinks=sinks.to(device), record=True)
    near(record.weights(), whole.weights())
    found, expected = (dict(each.statistics(top=1, size=8, offsets=(0, 1))) for each in (record, whole))
    assert found.keys() == expected.keys() >= {"entropy", "lse", "received", "learned_sink", "distance"}
    for name in expected.keys() - {"top", "keys_needed"}:  # these are of numbers that a rounding may swap
        torch.testing.assert_close(
            found[name].cpu().double(), expected[name].double(), rtol=2e-3, atol=2e-3, msg=lambda said, n=name: n + said
        )
    assert (found["keys_needed"].cpu() == expected["keys_needed"]).float().mean() > 0.99


class Fused(nn.Module):
    """Two layers of torch's fused attention, as models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(H * D, 3 * H * D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def fused() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Fused().double().eval(), torch.randn(B, N, H * D, dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-3), (torch.bfloat16, 5e-2)], ids=str)
def test_watching_fused_attention_changes_nothing(dtype: torch.dtype, tolerance: float, device: str) -> None:
    """On a GPU bfloat16 runs on a flash kernel, which makes no weights."""
    model, x = fused()
    with torch.no_grad(), headwise.watch(model) as whole:
        model(x)
    model, x = model.to(device, dtype), x.to(device, dtype)
    with torch.no_grad():
        plain = model(x)
        with headwise.watch(model) as seen:
            assert torch.equal(model(x), plain)
    assert len(seen) == 2
    for record, true in zip(seen, whole, strict=True):
        assert record.q.device.type == device
        near(record.entropy(), true.entropy(), tolerance)
        near(record.statistics("received").received, true.statistics("received").received, tolerance)


def test_edits_of_fused_attention(device: str) -> None:
    model, x = fused()
    for edit in (edits.ablate("*", heads=[1]), edits.temperature("*", 2.0), edits.block("*", keys=range(3, 9))):
        with torch.no_grad(), headwise.edit(model.double().to("cpu"), edit):
            expected = model(x)
        model.float().to(device)
        with torch.no_grad():
            plain = model(x.float().to(device))
            with headwise.edit(model, edit):
                out = model(x.float().to(device))
        near(out, expected)
        assert not torch.allclose(out, plain, atol=1e-2)


@pytest.fixture
def mesh(device: str, tmp_path: Path) -> Iterator[DeviceMesh]:
    """One process: with NCCL on a GPU."""
    backend = {"cpu": "gloo", "cuda": "nccl"}[device]
    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(backend, init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        yield init_device_mesh(device, (1,))
    finally:
        dist.destroy_process_group()


DOCUMENTS = masks.documents(torch.arange(2 * N) // 50)


@pytest.mark.parametrize("mask", [DOCUMENTS & masks.causal(), masks.causal()], ids=["documents", "causal"])
@pytest.mark.parametrize("strategy", ["gather", "ring", "heads"])
def test_a_sequence_that_processes_share(strategy: str, mask: Mask, mesh: DeviceMesh, device: str) -> None:
    tokens = 2 * N  # the ring is for more than 256
    inputs = [x.requires_grad_() for x in qkv(tokens, tokens)]
    expected = headwise.attention(*inputs, mask=mask, kernel="reference")
    d_out = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, inputs, d_out)
    layout = parallel.deal(mask, tokens, mesh)
    there = [headwise.shard(x.detach().float().to(device), layout, mesh, dim=2).requires_grad_() for x in inputs]
    with headwise.context_parallel(mesh, layout, strategy=strategy):
        if (strategy, device) == ("ring", "cuda"):
            with pytest.raises(KernelRefused, match="they run on the CPU"):
                headwise.attention(*there, mask=mask.to(device))
            return
        out = headwise.attention(*there, mask=mask.to(device))
    found = torch.autograd.grad(out, there, headwise.shard(d_out.float().to(device), layout, mesh, dim=2))
    for mine, true in zip((out, *found), (expected.detach(), *wanted), strict=True):
        near(headwise.gather(mine, layout, mesh, dim=2), true, 5e-3)


class Reads(nn.Module):
    """A model of ids, whose attention is fused."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(VOCABULARY, H * D), Layer()

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.layer(self.embedding(ids))


def test_a_profile(device: str) -> None:
    from headwise.capture.pretrained import Pretrained

    torch.manual_seed(0)
    model, texts = Reads().eval(), ["the cat saw the dog .", "a man ran a mile ."]
    expected = profile(Pretrained("reads", model, encode, 64), texts, length=16)
    found = profile(Pretrained("reads", model.to(device), encode, 64), texts, length=16)
    for name, x in expected.layers[0].numbers.items():
        if name != "histograms":  # a rounding may move a number to the next bin
            torch.testing.assert_close(found.layers[0].numbers[name], x, rtol=1e-3, atol=1e-3, msg=name)


def test_the_doctor_examines_a_copy_on_the_cpu(device: str) -> None:
    module = headwise.nn.MultiHeadAttention(16, 4).to(device)
    assert headwise.diagnose(module).findings == ()
    assert {x.device.type for x in module.parameters()} == {device}


def test_a_task_trains_and_predicts(device: str, tmp_path: Path) -> None:
    words = ("good", "bad")
    rows = {"sentence": [f"a {word} film {row}" for row in range(16) for word in words], "label": [*words] * 16}
    small = {"model": "scratch", "dim": 16, "heads": 2, "vocab_size": 100, "epochs": 10, "lr": 2e-2}
    kind = {"cpu": "cpu", "cuda": "gpu"}[device]
    task = tasks.Classify.fit(rows, text="sentence", out=tmp_path, accelerator=kind, monitor_every=4, **small)
    assert [row["label"] for row in task.predict(rows)[:4]] == ["good", "bad"] * 2
    loaded = tasks.load(tmp_path)
    assert next(loaded.parameters()).device.type == device
    assert [row["label"] for row in loaded.predict(rows)[:4]] == ["good", "bad"] * 2
