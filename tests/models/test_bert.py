"""Bert against transformers.BertModel, which is the definition of what a checkpoint means."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from headwise.errors import ArgumentError, CheckpointError, DtypeError, ShapeError
from headwise.models import Bert, BertConfig
from headwise.text import Tokenizer
from tests.versions import since

TOLERANCE = 2e-5

TINY = BertConfig(vocab_size=40, dim=12, num_layers=2, num_heads=3, ffn_dim=20, max_positions=16, num_token_types=2)
IDS = torch.tensor([[1, 5, 9, 39, 0], [2, 2, 7, 11, 30]])


def tiny_config(**changes: Any) -> transformers.BertConfig:
    """TINY, as Hugging Face says it."""
    settings = {
        "vocab_size": 40,
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "max_position_embeddings": 16,
        # A deviation of 0.02 leaves every attention nearly uniform and every bug in it nearly invisible.
        "initializer_range": 0.5,
    }
    return transformers.BertConfig(**settings | changes)


def tiny_bert(**changes: Any) -> transformers.BertModel:
    torch.manual_seed(0)
    return transformers.BertModel(tiny_config(**changes)).eval()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """The folder of a tiny checkpoint, for a test to spoil."""
    tiny_bert().save_pretrained(tmp_path)
    return tmp_path


def edit_tensors(folder: Path, **renamed: str) -> None:
    """Rewrites a checkpoint with every `old` in a tensor's name replaced by `new`."""
    tensors = load_file(folder / "model.safetensors")
    for old, new in renamed.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def furthest(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).detach().abs().max())


@pytest.fixture(scope="module")
def ours(minilm: Path) -> Bert:
    return Bert.from_pretrained(minilm)


@pytest.fixture(scope="module")
def theirs(minilm: Path) -> transformers.BertModel:
    return transformers.BertModel.from_pretrained(minilm, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def sequences(minilm: Path, paragraphs: list[str]) -> list[list[int]]:
    tokenizer = Tokenizer.from_pretrained(minilm)
    return [list(tokenizer.encode(paragraph, max_length=128).ids) for paragraph in paragraphs]


class TestMiniLM:
    """The real weights on real text: what `headwise view` shows is what the model everyone uses computes."""

    @torch.inference_mode()
    def test_paragraphs_in_padded_batches(
        self, ours: Bert, theirs: transformers.BertModel, sequences: list[list[int]]
    ) -> None:
        for start in (0, 30):
            batch = [torch.tensor(sequence) for sequence in sequences[start : start + 8]]
            ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(sequence) for sequence in batch], batch_first=True)
            assert mask.min() == 0
            ours_BSM, theirs_BSM = ours(ids, mask), theirs(ids, mask).last_hidden_state
            assert furthest(ours_BSM[mask.bool()], theirs_BSM[mask.bool()]) < TOLERANCE

    @torch.inference_mode()
    def test_pooled(self, ours: Bert, theirs: transformers.BertModel, sequences: list[list[int]]) -> None:
        ids = torch.tensor([sequences[0]])
        assert furthest(ours.pool(ours(ids)), theirs(ids).pooler_output) < TOLERANCE


class TestInputs:
    @pytest.fixture
    def bert(self) -> Bert:
        torch.manual_seed(0)
        return Bert(TINY).eval()

    def test_padding_changes_nothing(self, bert: Bert) -> None:
        alone = bert(IDS[:, :3])
        mask = torch.tensor([[1, 1, 1, 0, 0]]).expand(2, -1)
        torch.testing.assert_close(bert(IDS, mask)[:, :3], alone)
        torch.testing.assert_close(bert(IDS, mask.bool())[:, :3], alone)

    def test_example_of_padding_alone_leaves_the_others_as_they_are(self, bert: Bert) -> None:
        mask = torch.tensor([[True] * 5, [False] * 5])
        hidden = bert(IDS, mask)
        assert hidden.isfinite().all()
        torch.testing.assert_close(hidden[0], bert(IDS)[0])

    def test_more_tokens_than_positions(self, bert: Bert) -> None:
        assert bert(torch.zeros(1, 16, dtype=torch.long)).shape == (1, 16, 12)
        with pytest.raises(ShapeError, match=r"at most 16 tokens, the model.s limit. Received: input_ids="):
            bert(torch.zeros(1, 17, dtype=torch.long))

    @pytest.mark.parametrize("outside", [-1, 40])
    def test_ids_outside_the_vocabulary(self, bert: Bert, outside: int) -> None:
        with pytest.raises(
            ArgumentError, match=f"input_ids: expected ids from 0 to 39. Received: input_ids with {outside}"
        ):
            bert(torch.tensor([[3, outside, 3]]))

    def test_token_types(self, bert: Bert) -> None:
        with pytest.raises(ArgumentError, match=r"token_type_ids: expected ids from 0 to 1"):
            bert(IDS, token_type_ids=torch.full_like(IDS, 2))
        with pytest.raises(ShapeError, match=r"token_type_ids: expected \[2, 5\], as input_ids"):
            bert(IDS, token_type_ids=torch.zeros(2, 4, dtype=torch.long))
        with pytest.raises(DtypeError, match="token_type_ids: expected int64 or int32"):
            bert(IDS, token_type_ids=torch.zeros(2, 5))

    def test_pooling_without_a_pooler(self) -> None:
        bert = Bert(dataclasses.replace(TINY, pooler=False))
        with pytest.raises(CheckpointError, match="no pooler"):
            bert.pool(torch.zeros(2, 5, 12))


class TestTraining:
    def test_dropout_acts_in_training_alone(self) -> None:
        bert = Bert(TINY)
        assert not torch.equal(bert.train()(IDS), bert(IDS))
        assert torch.equal(bert.eval()(IDS), bert(IDS))

    def test_dropout_falls_where_transformers_has_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headwise.native.dropout.refuse", lambda x: "torch is to draw the numbers")
        theirs = tiny_bert(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.0)
        theirs.save_pretrained(tmp_path)
        ours = Bert.from_pretrained(tmp_path).train()
        torch.manual_seed(1)
        expected = theirs.train()(IDS).last_hidden_state
        torch.manual_seed(1)
        assert furthest(ours(IDS), expected) < TOLERANCE


class TestCheckpoints:
    """Whatever a BERT was saved from, by whatever version, the same encoder comes out."""

    def assert_equal(self, folder: Path, theirs: transformers.BertModel) -> Bert:
        ours = Bert.from_pretrained(folder)
        assert not ours.training
        mask, types = IDS > 0, torch.tensor([[0, 0, 1, 1, 0], [1, 0, 0, 1, 1]])
        expected = theirs.eval()(IDS, mask, token_type_ids=types).last_hidden_state
        assert furthest(ours(IDS, mask, types)[mask], expected[mask]) < TOLERANCE
        return ours

    def test_bare_encoder(self, tiny: Path) -> None:
        ours = self.assert_equal(tiny, tiny_bert())
        assert furthest(ours.pool(ours(IDS)), tiny_bert()(IDS).pooler_output) < TOLERANCE
        assert ours.config == TINY

    def test_encoder_under_a_head(self, tmp_path: Path) -> None:
        torch.manual_seed(1)
        theirs = transformers.BertForMaskedLM(tiny_config())
        theirs.save_pretrained(tmp_path)
        assert any(name.startswith("cls.") for name in load_file(tmp_path / "model.safetensors"))
        ours = self.assert_equal(tmp_path, theirs.bert)
        assert not ours.config.pooler

    def test_encoder_and_pooler_under_a_head(self, tmp_path: Path) -> None:
        torch.manual_seed(1)
        theirs = transformers.BertForSequenceClassification(tiny_config())
        theirs.save_pretrained(tmp_path)
        ours = self.assert_equal(tmp_path, theirs.bert)
        assert furthest(ours.pool(ours(IDS)), theirs.bert(IDS).pooler_output) < TOLERANCE

    def test_several_files(self, tmp_path: Path) -> None:
        tiny_bert().save_pretrained(tmp_path, max_shard_size="4KB")
        assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
        self.assert_equal(tmp_path, tiny_bert())

    def test_gamma_and_beta(self, tiny: Path) -> None:
        edit_tensors(tiny, **{"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"})
        self.assert_equal(tiny, tiny_bert())

    def test_position_ids_of_old_checkpoints(self, tiny: Path) -> None:
        tensors = load_file(tiny / "model.safetensors")
        save_file(tensors | {"embeddings.position_ids": torch.arange(16)[None]}, tiny / "model.safetensors")
        self.assert_equal(tiny, tiny_bert())

    def test_config_of_2018_names_no_model_type(self, tiny: Path) -> None:
        config = json.loads((tiny / "config.json").read_text())
        del config["model_type"]
        (tiny / "config.json").write_text(json.dumps(config))
        self.assert_equal(tiny, tiny_bert())

    @pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
    def test_activations(self, tmp_path: Path, hidden_act: str) -> None:
        theirs = tiny_bert(hidden_act=hidden_act)
        theirs.save_pretrained(tmp_path)
        self.assert_equal(tmp_path, theirs)

    def test_half_precision_is_read_as_float32_unless_asked(self, tmp_path: Path) -> None:
        tiny_bert().half().save_pretrained(tmp_path)
        self.assert_equal(tmp_path, tiny_bert().half().float())
        assert {p.dtype for p in Bert.from_pretrained(tmp_path, dtype=torch.float16).parameters()} == {torch.float16}

    def test_loaded_weights_train(self, tiny: Path) -> None:
        bert = Bert.from_pretrained(tiny)
        assert all(p.requires_grad and p.is_leaf and p.device.type == "cpu" for p in bert.parameters())

    def test_training_leaves_the_file_as_it_was(self, tiny: Path) -> None:
        before = (tiny / "model.safetensors").read_bytes()  # the weights are mapped from it, not read
        with torch.no_grad():
            for parameter in Bert.from_pretrained(tiny).parameters():
                parameter.add_(1)
        assert (tiny / "model.safetensors").read_bytes() == before

    def test_loading_draws_no_random_numbers(self, tiny: Path) -> None:
        state = torch.get_rng_state()
        Bert.from_pretrained(tiny)
        assert torch.equal(torch.get_rng_state(), state)

    def test_loading_does_not_wake_the_compiler(self, tiny: Path) -> None:
        since("torch", "2.14")  # torch 2.8 itself imports sympy for a check
        # It is 800 modules and a second; initialising weights on the meta device would import it.
        code = (
            "import sys; from headwise.models import Bert; Bert.from_pretrained(sys.argv[1]); "
            "print([name for name in ('torch._dynamo', 'sympy', 'transformers') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tiny)], capture_output=True, check=True, text=True)
        assert done.stdout == "[]\n"


class TestCheckpointsRefused:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model_type": "gpt2"}, r"a BERT encoder or one of its kind \(bert, roberta, .*model_type='gpt2'"),
            ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
            ({"is_decoder": True}, "Received: is_decoder=true"),
            ({"add_cross_attention": True}, "Received: add_cross_attention=true"),
            ({"hidden_act": "mish"}, "hidden_act: expected one of gelu, .*. Received: hidden_act='mish'"),
            ({"hidden_act": ["gelu"]}, r"hidden_act: expected one of gelu, .*. Received: hidden_act=\['gelu'\]"),
            ({"num_hidden_layers": "two"}, "num_layers: expected a whole number above 0. Received: num_layers='two'"),
            ({"num_attention_heads": 0}, "num_heads: expected a whole number above 0. Received: num_heads=0"),
            ({"num_attention_heads": 5}, "dim: expected a multiple of num_heads=5. Received: dim=12"),
            ({"hidden_dropout_prob": 1.5}, "dropout: expected a number from 0 to 1"),
        ],
    )
    def test_config_that_is_not_ours(self, tiny: Path, changes: dict[str, Any], message: str) -> None:
        edit_config(tiny, **changes)
        with pytest.raises(CheckpointError, match=message) as caught:
            Bert.from_pretrained(tiny)
        assert "\n" not in str(caught.value)

    def test_missing_tensors_are_named(self, tiny: Path) -> None:
        edit_tensors(tiny, **{"attention.self.query": "attention.self.q"})
        names = "encoder.layer.0.attention.self.query.weight, encoder.layer.0.attention.self.query.bias"
        with pytest.raises(CheckpointError, match=rf"lacks 4 tensors \({names}, .*, \.\.\.\)"):
            Bert.from_pretrained(tiny)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"num_hidden_layers": 3}, "expected num_layers=2, as the tensors have. Received: 3"),
            ({"num_hidden_layers": 1}, "expected num_layers=2, as the tensors have. Received: 1"),
            ({"num_hidden_layers": 10**9}, "expected num_layers=2"),  # it would take hours to build
            ({"vocab_size": 41}, "expected vocab_size=40, as the tensors have. Received: 41"),
            ({"vocab_size": 10**30}, "expected vocab_size=40"),
            ({"hidden_size": 12 * 10**12}, "expected dim=12"),
            ({"intermediate_size": 10**12}, "expected ffn_dim="),
            ({"max_position_embeddings": 10**12}, "expected max_positions="),
        ],
    )
    def test_config_of_another_size_than_the_tensors(self, tiny: Path, changes: dict[str, Any], message: str) -> None:
        edit_config(tiny, **changes)
        with pytest.raises(CheckpointError, match=f"^config.json: {message}"):
            Bert.from_pretrained(tiny)

    @pytest.mark.parametrize("text", ["[" * 100_000, '{"vocab_size": ' + "9" * 5000 + "}"], ids=["deep", "long"])
    def test_json_that_python_cannot_take(self, tiny: Path, text: str) -> None:
        (tiny / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"cannot read .*config\.json: expected JSON"):
            Bert.from_pretrained(tiny)

    def test_half_a_pooler(self, tiny: Path) -> None:
        edit_tensors(tiny, **{"pooler.dense.bias": "other"})
        with pytest.raises(CheckpointError, match=r"lacks pooler\.dense\.bias"):
            Bert.from_pretrained(tiny)

    def test_tensors_of_another_shape(self, tiny: Path) -> None:
        tensors = load_file(tiny / "model.safetensors")
        tensors["encoder.layer.1.output.dense.bias"] = torch.zeros(11)
        save_file(tensors, tiny / "model.safetensors")
        message = r"output\.dense\.bias: config\.json makes it \[12\] .* the checkpoint has \[11\]"
        with pytest.raises(CheckpointError, match=message):
            Bert.from_pretrained(tiny)

    def test_quantised_tensors(self, tiny: Path) -> None:
        tensors = load_file(tiny / "model.safetensors")
        save_file({name: tensor.to(torch.int8) for name, tensor in tensors.items()}, tiny / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"floating-point numbers, .* of torch\.int8"):
            Bert.from_pretrained(tiny)
