"""The head on an encoder: what it pools, what padding does not change, which words it hides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.models import Bert, BertConfig, unpadded
from headwise.models.latent_encoder import LatentEncoder, LatentEncoderConfig
from headwise.models.small_encoder import SmallEncoder, SmallEncoderConfig
from headwise.models.span_reader import SpanReader
from headwise.models.text_classifier import TextClassifier

BERT = BertConfig(20, 8, 1, 2, 16, 32, dropout=0.0, attention_dropout=0.0, pooler=False)
ENCODERS = {
    "bert": lambda: Bert(BERT),
    "small": lambda: SmallEncoder(SmallEncoderConfig(20, 8, dropout=0.0, attention_dropout=0.0)),
    "latent": lambda: LatentEncoder(LatentEncoderConfig(20, 8, num_latents=3, num_layers=1, num_heads=2, dropout=0.0)),
}
IDS = torch.tensor([[2, 7, 8, 9, 3], [2, 5, 3, 0, 0]])
REAL = IDS != 0


class Echo(nn.Module):
    """Says of each token its id, twice."""

    class config:  # noqa: N801 (as encoders have it)
        dim = 2

    def forward(self, ids: Tensor, real: Tensor | None = None, types: Tensor | None = None) -> Tensor:
        return ids[..., None].float().expand(-1, -1, 2)


def classifier(**options: object) -> TextClassifier:
    """One whose first class is the pooled vector."""
    made = TextClassifier(Echo(), 2, dropout=0.0, **options)  # type: ignore[arg-type]
    made.head.weight.data = torch.eye(2)
    return made


def test_pooling_is_the_mean_over_real_tokens_or_cls() -> None:
    assert classifier()(IDS, REAL)[:, 0].tolist() == pytest.approx([29 / 5, 10 / 3])
    assert classifier()(IDS)[:, 0].tolist() == pytest.approx([29 / 5, 10 / 5])
    assert classifier(pooling="cls")(IDS, REAL)[:, 0].tolist() == [2, 2]


def test_words_are_hidden_in_training_alone_and_signs_never() -> None:
    made = classifier(word_dropout=0.999999, mask_id=4, kept_ids=(0, 2, 3))
    assert made(IDS, REAL)[:, 0].tolist() == pytest.approx([(2 + 4 + 4 + 4 + 3) / 5, (2 + 4 + 3) / 3])
    assert made.eval()(IDS, REAL)[:, 0].tolist() == pytest.approx([29 / 5, 10 / 3])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_texts_of_unlike_lengths_are_read_without_padding(pooling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpadded, "TOKENS", 12)  # several passes, one of a single text that is longer
    made = TextClassifier(Bert(BERT), 3, pooling=pooling).eval()  # type: ignore[arg-type]
    ids = [torch.randint(20, (length,)).tolist() for length in (3, 5, 30, 4, 4, 2, 9)]
    types = [[0, *[1] * (len(each) - 1)] for each in ids]
    with torch.no_grad():
        found = made.unpadded(ids, types)
        alone = [made(torch.tensor([a]), None, torch.tensor([b])) for a, b in zip(ids, types, strict=True)]
    torch.testing.assert_close(found, torch.cat(alone))


@pytest.mark.parametrize("kind", ENCODERS)
def test_padding_changes_nothing(kind: str) -> None:
    made = TextClassifier(ENCODERS[kind](), 3).eval()
    with torch.no_grad():
        together = made(IDS, REAL)
        torch.testing.assert_close(together[1:], made(IDS[1:, :3]))
        torch.testing.assert_close(together[:1], made(IDS[:1]))


@pytest.mark.parametrize("kind", ENCODERS)
def test_order_and_the_text_that_a_token_is_from_change_the_answer(kind: str) -> None:
    made = TextClassifier(ENCODERS[kind](), 3).eval()
    with torch.no_grad():
        first = made(IDS[:1])
        assert not torch.allclose(first, made(IDS[:1, [0, 3, 2, 1, 4]]), atol=1e-7)
        assert not torch.allclose(first, made(IDS[:1], None, torch.tensor([[0, 0, 0, 1, 1]])), atol=1e-7)


@pytest.mark.parametrize("kind", ENCODERS)
def test_ids_that_do_not_fit_are_named(kind: str) -> None:
    encoder = ENCODERS[kind]()
    with pytest.raises(ShapeError, match="input_ids"):
        encoder(torch.tensor([1, 2]))
    with pytest.raises(ArgumentError, match="from 0 to 19"):
        encoder(torch.tensor([[20]]))
    with pytest.raises(DtypeError, match="input_ids"):
        encoder(torch.tensor([[1.0]]))


@pytest.mark.parametrize("kind", ["small", "latent"])
def test_a_text_may_have_any_length(kind: str) -> None:
    made = TextClassifier(ENCODERS[kind](), 2).eval()
    with torch.no_grad():
        assert made(torch.randint(20, (1, 1500))).shape == (1, 2)


def test_a_span_reader_has_two_numbers_for_each_token() -> None:
    starts, ends = SpanReader(Bert(BERT))(IDS, REAL)
    assert starts.shape == ends.shape == IDS.shape


def test_options_that_do_not_fit_are_named() -> None:
    with pytest.raises(ArgumentError, match="pooling"):
        classifier(pooling="max")
    with pytest.raises(ArgumentError, match="word_dropout"):
        classifier(word_dropout=1.0)
    with pytest.raises(ArgumentError, match="dim"):
        SmallEncoderConfig(20, 10, num_heads=4)
    with pytest.raises(ArgumentError, match="num_latents"):
        LatentEncoderConfig(20, num_latents=0)


def test_a_checkpoint_can_be_loaded_with_another_dropout(tiny_bert: object) -> None:
    bert = Bert.from_pretrained(str(tiny_bert), dropout=0.25)
    assert bert.config.dropout == bert.config.attention_dropout == 0.25
    assert bert.embeddings.dropout.p == 0.25
    with pytest.raises(ArgumentError, match="dropout"):
        Bert.from_pretrained(str(tiny_bert), dropout=1.5)
