"""Checks of meshes of two dimensions, of one process among four: a shared sequence with FSDP or tensor parallelism."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import headwise
from headwise import masks, parallel
from headwise.models.language_model import CausalConfig, CausalLanguageModel
from headwise.nn import Encoder, MultiHeadAttention, positions

LENGTH, BATCH, VOCAB = 21, 4, 30


def language_model() -> CausalLanguageModel:
    torch.manual_seed(3)
    return CausalLanguageModel(CausalConfig(VOCAB, 16, 2, 4, 0.0)).double()


def texts() -> tuple[Tensor, Tensor]:
    ids = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(5))
    return ids[:, :-1], ids[:, 1:]


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """The share of these tokens in the mean over all of the batch."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / (BATCH * LENGTH)


def alone(model: CausalLanguageModel) -> tuple[float, dict[str, Tensor]]:
    inputs, labels = texts()
    loss = loss_of(model(inputs), labels)
    loss.backward()
    return float(loss.detach()), {name: x.grad for name, x in model.named_parameters() if x.grad is not None}


def same(loss: Tensor, model: nn.Module, whole: tuple[float, dict[str, Tensor]]) -> None:
    """The sum of the processes' losses, and each gradient of the model, are those of one process."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    near = {"atol": 1e-9, "rtol": 1e-9}
    torch.testing.assert_close(float(total), whole[0], **near)
    found = dict(model.named_parameters())
    assert found.keys() == whole[1].keys()
    for name, wanted in whole[1].items():
        mine = found[name].grad
        assert mine is not None, name
        mine = mine.full_tensor() if isinstance(mine, DTensor) else mine
        torch.testing.assert_close(mine, wanted, **near, msg=lambda told, name=name: f"{name}: {told}")


def fsdp(mesh: DeviceMesh, *, replicated: bool) -> None:
    """Batches dealt along "dp", sequences along "cp"; weights sharded over both, or over "dp" alone (HSDP)."""
    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "dp"))
    whole = alone(language_model())
    model = language_model()
    over = two if replicated else two._flatten("dp_cp")
    for layer in model.decoder.layers:
        fully_shard(layer, mesh=over)
    fully_shard(model, mesh=over)
    layout = parallel.deal(masks.causal(), LENGTH, two["cp"])
    here = [headwise.shard(x, layout, two["cp"]).chunk(2)[two.get_local_rank("dp")] for x in texts()]
    for _ in range(2):  # the second time, what FSDP prepared at the first is used
        model.zero_grad()
        with headwise.context_parallel(two["cp"], layout):
            loss = loss_of(model(here[0]), here[1])
        (loss * two.size()).backward()  # FSDP takes the mean over processes
        same(loss, model, whole)


def split_by_heads(model: nn.Module, mesh: DeviceMesh) -> None:
    """Tensor parallelism of every layer: attention by heads, feed-forward networks by hidden dimensions."""
    columns = ColwiseParallel(use_local_output=False)
    for layer in model.layers:
        layer.attention.unfuse()
        plan = dict.fromkeys(["attention.q", "attention.k", "attention.v"], columns) | {
            "attention.out": RowwiseParallel()
        }
        plan |= {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
        if layer.mlp.gate is not None:
            plan["mlp.gate"] = ColwiseParallel()
        parallelize_module(layer, mesh, plan)


def unfused_gradients(model: CausalLanguageModel) -> tuple[float, dict[str, Tensor]]:
    for layer in model.decoder.layers:
        layer.attention.unfuse()
    return alone(model)


def tensor_parallel(mesh: DeviceMesh) -> None:
    """Sequences along "cp", heads along "tp"."""
    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    whole = unfused_gradients(language_model())
    model = language_model()
    split_by_heads(model.decoder, two["tp"])
    layout = parallel.deal(masks.causal(), LENGTH, two["cp"])
    inputs, labels = (headwise.shard(x, layout, two["cp"]) for x in texts())
    with headwise.context_parallel(two["cp"], layout):
        loss = loss_of(model(inputs), labels)
    loss.backward()
    for x in model.parameters():  # shares of the rows; those of heads are in their places
        grad = x.grad.to_local() if isinstance(x.grad, DTensor) else x.grad
        dist.all_reduce(grad, group=two["cp"].get_group())
    same(loss / 2, model, whole)  # both processes along "tp" have the loss


def fused(mesh: DeviceMesh) -> None:
    """Without `unfuse` the activations of qkv are gathered, and all is right."""
    whole = MultiHeadAttention(16, 4, positions=positions.Rope(4)).double()
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    expected = whole(x, mask=masks.causal())
    columns = ColwiseParallel(use_local_output=False)
    part = parallelize_module(copy.deepcopy(whole), mesh, {"qkv": columns, "out": RowwiseParallel()})
    out = part(x, mask=masks.causal())
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    torch.autograd.backward(expected.sum()), torch.autograd.backward(out.sum())
    torch.testing.assert_close(part.qkv.weight.grad.full_tensor(), whole.qkv.weight.grad, atol=1e-12, rtol=1e-12)


def options_of_heads(mesh: DeviceMesh) -> None:
    """What has a number for each head: each process takes its own of sinks, slopes and T5's bias."""
    schemes: list[Callable[[], positions.Positions]] = [lambda: positions.Alibi(8), lambda: positions.T5Buckets(8)]
    for scheme in schemes:
        attention = lambda: MultiHeadAttention(16, 8, num_kv_heads=4, sinks=True, positions=scheme())  # noqa: B023, E731
        torch.manual_seed(1)
        whole = Encoder(16, num_layers=1, attention=attention).double()
        nn.init.normal_(whole.layers[0].attention.sinks)
        model = copy.deepcopy(whole)
        split_by_heads(model, mesh)
        x = torch.randn(2, 9, 16, dtype=torch.float64)
        expected, out = whole(x, mask=masks.causal()), model(x, mask=masks.causal())
        torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
        expected.square().sum().backward(), out.square().sum().backward()
        sinks = model.layers[0].attention.sinks.grad
        dist.all_reduce(sinks)  # a plain parameter: each process has the share of its heads
        torch.testing.assert_close(sinks, whole.layers[0].attention.sinks.grad, atol=1e-12, rtol=1e-12)


CHECKS = {
    "fsdp over dp and cp": lambda mesh: fsdp(mesh, replicated=False),
    "fsdp over dp": lambda mesh: fsdp(mesh, replicated=True),
    "tensor parallel": tensor_parallel,
    "tensor parallel, fused": fused,
    "tensor parallel, options": options_of_heads,
}
