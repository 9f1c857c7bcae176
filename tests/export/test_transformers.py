"""PyTorch's own transformers as exports: masks as they are, and padding, where its fast path writes 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.errors import ExportError
from headwise.export.comparing import Difference, compared
from headwise.export.exporting import export
from headwise.export.graphs import make_graphs
from headwise.export.tracing import trace

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor")
SMALL: dict[str, Any] = {"d_model": 8, "nhead": 2, "dim_feedforward": 8, "batch_first": True}


def causal(length: int) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(length)


class Padded(nn.Module):
    """An encoder that is told of padding, with a head: at padding the fast path gives its bias."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 8), nn.Linear(8, 3)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**SMALL), 2, **options)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(ids), src_key_padding_mask=ids == 0))


class ChannelsFirst(Padded):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).transpose(1, 2)


class Pooled(Padded):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).mean(1)


class PooledRightly(Padded):
    def forward(self, ids: Tensor) -> Tensor:
        real = (ids != 0).unsqueeze(-1)
        return (super().forward(ids) * real).sum(1) / real.sum(1)


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**SMALL), 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x, mask=causal(x.shape[1]))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**SMALL), 1)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.decoder(x, memory, tgt_mask=causal(x.shape[1]))


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(num_encoder_layers=1, num_decoder_layers=1, **SMALL)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.transformer(memory, x, tgt_mask=causal(x.shape[1]))


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x + 1
        return x


def ids() -> list[tuple[Tensor, ...]]:
    padded = torch.randint(1, 9, (3, 7))
    padded[0, 4:] = 0
    padded[1, 1:] = 0
    return [(torch.randint(1, 9, (2, 5)),), (padded,)]


def vectors(*lengths: int) -> list[tuple[Tensor, ...]]:
    return [tuple(torch.randn(batch, length + batch, 8) for length in lengths) for batch in (2, 3)]


def differences(module: nn.Module, examples: list[tuple[Tensor, ...]]) -> Difference:
    """Trace a module, and compare the program with it."""
    (graph,) = make_graphs(module, examples=examples)
    program = trace(graph).module()
    with torch.no_grad():
        (found,) = compared(graph, [(program(*given),) for given in graph.examples], 1e-4)
    return found


@pytest.mark.parametrize("kind", [Padded, ChannelsFirst])
def test_padding_is_left_out_of_the_comparison(kind: type[Padded]) -> None:
    torch.manual_seed(0)
    found = differences(kind(), ids())
    assert found.relative < 1e-5
    assert found.left_out == (3 + 6) * 3  # nine positions of padding, three logits each


def test_only_padding_is_left_out() -> None:
    torch.manual_seed(0)
    (graph,) = make_graphs(Padded(), examples=ids())
    with torch.no_grad():
        outputs = [graph.module(*given) for given in graph.examples]
    outputs[1][0, 3] += 1.0
    with pytest.raises(ExportError, match="differs from the model's by 1 at most"):
        compared(graph, [(each,) for each in outputs], 1e-4)


def test_an_output_that_depends_on_padding_is_refused_and_others_are_not() -> None:
    torch.manual_seed(0)
    with pytest.raises(ExportError, match=r"writes 0 at padding.*enable_nested_tensor=False"):
        differences(Pooled(), ids())
    for module in (PooledRightly(), Pooled(enable_nested_tensor=False)):
        assert differences(module, ids()).left_out == 0


@pytest.mark.parametrize(("kind", "lengths"), [(Causal, (4,)), (Decoder, (4, 6)), (Both, (4, 6))])
def test_a_mask_is_taken_as_it_is(kind: type[nn.Module], lengths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    assert differences(kind(), vectors(*lengths)).relative < 1e-5


def test_what_cannot_be_traced_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    (graph,) = make_graphs(Deciding(), examples=vectors(4))
    with pytest.raises(
        ExportError,
        match=r"^model: .* decides by the values of a tensor.*, at test_transformers\.py:\d+: if x\.sum\(\) > 0:",
    ) as caught:
        trace(graph)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_note_says_what_was_not_compared(tmp_path: Path) -> None:
    torch.manual_seed(0)
    done = export(Padded(), "torch", tmp_path / "out", examples=ids(), aoti=False, speed=False)
    assert any(note.startswith("27 values at padding were not compared") for note in done.manifest.notes)
