"""Each family against transformers, which is the definition of what its checkpoints mean."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import headwise
from headwise.errors import ArgumentError, CheckpointError
from headwise.models import Bert, BertConfig, unpadded
from headwise.models.families import FAMILIES
from headwise.models.families.tensors import named

TOLERANCE = 2e-5
PAD = 1

SHAPE = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
    "pad_token_id": PAD,
    # A deviation of 0.02 leaves every attention nearly uniform and every bug in it nearly invisible.
    "initializer_range": 0.4,
}
DISTIL = {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 24}
DISTIL |= {name: SHAPE[name] for name in ("vocab_size", "max_position_embeddings", "pad_token_id", "initializer_range")}
TOKENS = {"bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {  # what transformers calls it, and its config
    "roberta": ("Roberta", SHAPE | {"type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", SHAPE | {"type_vocab_size": 1, "hidden_act": "relu"}),
    "distilbert": ("DistilBert", DISTIL),
    "electra": ("Electra", SHAPE | {"embedding_size": 12}),
    "electra of one width": ("Electra", SHAPE | {"embedding_size": 16}),
    "mpnet": ("MPNet", SHAPE),
    "modernbert": ("ModernBert", SHAPE | TOKENS | {"local_attention": 6}),
    "modernbert with biases and listed layers": (
        "ModernBert",
        SHAPE
        | TOKENS
        | {
            **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), True),
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "local_attention": 4,
        },
    ),
}


def made(name: str, kind: str = "Model") -> transformers.PreTrainedModel:
    called, shape = CHECKPOINTS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{called}Config")(**shape)
    model = getattr(transformers, f"{called}{kind}")(config).eval()
    for parameter in model.parameters():  # so that no norm, bias or row of padding is 0 or 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def drawn(lengths: list[int], *, left: bool) -> tuple[Tensor, Tensor]:
    """Ids and mask of texts with padding on one side."""
    ids = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        place = slice(max(lengths) - length, None) if left else slice(length)
        ids[row, place] = torch.randint(3, 40, (length,))
    return ids, (ids != PAD).long()


def furthest(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).detach().abs().max())


@pytest.mark.parametrize("name", CHECKPOINTS)
class TestFamilies:
    @torch.inference_mode()
    def test_hidden_states_are_those_of_transformers(self, name: str, tmp_path: Path) -> None:
        theirs = made(name)
        theirs.save_pretrained(tmp_path)
        ours = headwise.Bert.from_pretrained(tmp_path)
        for left in (False, True):
            ids, mask = drawn([14, 5, 9], left=left)
            types = {"token_type_ids": torch.randint(2, ids.shape)} if ours.reads_types else {}
            expected = theirs(ids, mask, **types).last_hidden_state
            assert furthest(ours(ids, mask, **types)[mask.bool()], expected[mask.bool()]) < TOLERANCE
        whole = torch.randint(3, 40, (2, 11))
        assert furthest(ours(whole), theirs(whole).last_hidden_state) < TOLERANCE

    @torch.inference_mode()
    def test_packed_passes_are_the_same(self, name: str, tmp_path: Path) -> None:
        theirs = made(name)
        theirs.save_pretrained(tmp_path)
        ours = Bert.from_pretrained(tmp_path)
        texts = [torch.randint(3, 40, (length,)).tolist() for length in (14, 5, 9, 9, 1)]
        for text, hidden in zip(texts, unpadded.read(ours, texts), strict=True):
            assert furthest(hidden, theirs(torch.tensor([text])).last_hidden_state[0]) < TOLERANCE

    @torch.inference_mode()
    def test_encoder_under_a_head(self, name: str, tmp_path: Path) -> None:
        theirs = made(name, "ForTokenClassification")
        theirs.save_pretrained(tmp_path)
        (prefix,) = {FAMILIES[each].prefix for each in FAMILIES if name.split()[0] in FAMILIES[each].model_types}
        assert any(each.startswith(prefix) for each in load_file(tmp_path / "model.safetensors"))
        ids = torch.randint(3, 40, (2, 11))
        expected = theirs.base_model(ids).last_hidden_state
        assert furthest(Bert.from_pretrained(tmp_path)(ids), expected) < TOLERANCE

    def test_watch_gives_the_weights_of_transformers(self, name: str, tmp_path: Path) -> None:
        theirs = made(name)
        theirs.save_pretrained(tmp_path)
        theirs.set_attn_implementation("eager")
        ours = Bert.from_pretrained(tmp_path)
        ids, mask = drawn([12, 7], left=False)
        with torch.no_grad(), headwise.watch(ours) as seen:
            ours(ids, mask)
        expected = theirs(ids, mask, output_attentions=True).attentions
        assert len(seen) == len(expected) == 3
        for record, weights in zip(seen, expected, strict=True):
            assert furthest(record.weights()[0], weights[0]) < TOLERANCE
            assert furthest(record.weights()[1, :, :7, :7], weights[1, :, :7, :7]) < TOLERANCE

    def test_the_config_comes_back_from_json(self, name: str, tmp_path: Path) -> None:
        made(name).save_pretrained(tmp_path)
        ours = Bert.from_pretrained(tmp_path)
        again = Bert(BertConfig(**json.loads(json.dumps(asdict(ours.config))))).eval()
        assert again.config == ours.config
        again.load_state_dict(ours.state_dict())
        ids = torch.randint(3, 40, (1, 9))
        assert torch.equal(again(ids), ours(ids))

    def test_gradients_are_those_of_transformers(self, name: str, tmp_path: Path) -> None:
        theirs = made(name)
        theirs.save_pretrained(tmp_path)
        ours = Bert.from_pretrained(tmp_path)
        ids, mask = drawn([12, 7], left=False)
        ours(ids, mask)[mask.bool()].sin().sum().backward()
        theirs(ids, mask).last_hidden_state[mask.bool()].sin().sum().backward()
        expected = FAMILIES[ours.config.family].encoder_tensors({n: p.grad for n, p in theirs.named_parameters()})
        found = named(
            FAMILIES[ours.config.family], ((n, p.grad) for n, p in ours.named_parameters() if p.grad is not None)
        )
        for each, gradient in found.items():
            # Rows of padding get no gradient there.
            rows = slice(PAD + 1, None) if "word" in each or "tok_emb" in each or "position" in each else slice(None)
            torch.testing.assert_close(gradient[rows], expected[each][rows], rtol=1e-3, atol=1e-4)


# The others take as long, and find the same.
@pytest.mark.parametrize("name", ["distilbert", pytest.param("modernbert", marks=pytest.mark.slow)])
def test_the_doctor_examines_them(name: str, tmp_path: Path) -> None:
    made(name).save_pretrained(tmp_path)
    found = headwise.diagnose(Bert.from_pretrained(tmp_path), timeout=None)
    # Where padding counts, as in BERT and its nearest kin, text moves when it stands on the left.
    counts = name == "distilbert"
    assert not found.not_examined
    assert not found.bugs
    assert ("left-padding" in {each.name for each in found.findings}) == counts


class TestRefused:
    """What is not computed raises an error that says what is."""

    def edited(self, folder: Path, name: str, **changes: Any) -> Path:
        made(name).save_pretrained(folder)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return folder

    @pytest.mark.parametrize(
        ("name", "changes", "message"),
        [
            ("roberta", {"model_type": "new"}, r"\(bert, roberta, .*modernbert\). Received: model_type='new'"),
            ("roberta", {"pad_token_id": None}, "Received: pad_token_id=None, max_position_embeddings=24"),
            ("roberta", {"max_position_embeddings": 30}, "expected max_positions=22, .* Received: 28"),
            ("roberta", {"is_decoder": True}, "expected an encoder, not a decoder. Received: is_decoder=true"),
            ("electra", {"embedding_size": 10}, "expected embedding_dim=12, as the tensors have. Received: 10"),
            ("distilbert", {"n_layers": 4}, "expected num_layers=3, as the tensors have. Received: 4"),
            ("modernbert", {"mlp_bias": True}, "biases in all .* attention_bias=False, mlp_bias=True, norm_bias=False"),
            ("modernbert", {"layer_types": ["chunked_attention"] * 3}, "Received: 'chunked_attention'"),
            ("modernbert", {"hidden_activation": "relu"}, "hidden_act: expected one with a gate. .*'relu'"),
            ("modernbert", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "expected RoPE without"),
        ],
    )
    def test_config(self, tmp_path: Path, name: str, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            Bert.from_pretrained(self.edited(tmp_path, name, **changes))

    def test_lacking_and_further_tensors(self, tmp_path: Path) -> None:
        made("modernbert").save_pretrained(tmp_path)
        path = tmp_path / "model.safetensors"
        tensors = load_file(path)
        save_file(tensors | {"layers.0.attn_norm.weight": torch.ones(16)}, path)
        with pytest.raises(CheckpointError, match=r"has layers\.0\.attn_norm\.weight, which the model"):
            Bert.from_pretrained(tmp_path)
        del tensors["layers.2.mlp.Wi.weight"]
        save_file(tensors, path)
        with pytest.raises(CheckpointError, match=r"lacks layers\.2\.mlp\.Wi\.weight of the model"):
            Bert.from_pretrained(tmp_path)

    @pytest.mark.parametrize("name", ["roberta", "distilbert", "mpnet", "modernbert"])
    def test_token_types_where_there_are_none(self, tmp_path: Path, name: str) -> None:
        made(name).save_pretrained(tmp_path)
        ours = Bert.from_pretrained(tmp_path)
        ids = torch.tensor([[3, 4]])
        assert torch.equal(ours(ids, token_type_ids=torch.zeros_like(ids)), ours(ids))
        with pytest.raises(ArgumentError, match=r"expected ids from 0 to 0\. Received: token_type_ids with 1"):
            ours(ids, token_type_ids=torch.ones_like(ids))


def test_modernbert_of_older_configs(tmp_path: Path) -> None:
    theirs = made("modernbert")
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for name in ("rope_parameters", "layer_types"):
        del config[name]
    path.write_text(json.dumps(config | {"global_attn_every_n_layers": 3, "local_rope_theta": 10_000.0}))
    ids = torch.randint(3, 40, (1, 20))
    with torch.inference_mode():
        assert furthest(Bert.from_pretrained(tmp_path)(ids), theirs(ids).last_hidden_state) < TOLERANCE


def test_padding_counts_for_no_position_whatever_stands_there(tmp_path: Path) -> None:
    made("roberta").save_pretrained(tmp_path)
    ours = Bert.from_pretrained(tmp_path)
    ids = torch.randint(3, 40, (1, 9))
    real = torch.tensor([[0] * 4 + [1] * 5])
    torch.testing.assert_close(ours(ids, real)[:, 4:], ours(ids[:, 4:]), atol=1e-5, rtol=0)
