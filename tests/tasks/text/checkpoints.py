"""Tiny checkpoints of several families, with tokenizers of the kinds that they have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = ["a good film", "a bad film", "who saw the cat", "the dog saw the cat", "so bad", "so good"] * 3
SIGNS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SHAPE |= {"max_position_embeddings": 66, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def roberta(folder: Path) -> None:
    """Byte-level BPE: "<s> a </s></s> b </s>"."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=SIGNS, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    _save(folder, backend, transformers.RobertaConfig(**_sized(backend), type_vocab_size=1, pad_token_id=1))


def xlm_roberta(folder: Path) -> None:
    """Sentencepiece's Unigram, with the same signs."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=60, unk_token="<unk>", special_tokens=SIGNS, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    _save(folder, backend, transformers.XLMRobertaConfig(**_sized(backend), type_vocab_size=1, pad_token_id=1))


def mpnet(folder: Path) -> None:
    """WordPiece with the signs of RoBERTa, and BERT's among its words."""
    words = [*SIGNS[:4], "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_words(), "<mask>"]
    backend = _wordpiece(words)
    backend.add_special_tokens([*SIGNS, "[UNK]"])
    ids = [("<s>", 0), ("</s>", 2)]
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ids
    )
    _save(folder, backend, transformers.MPNetConfig(**_sized(backend)))


def distilbert(folder: Path) -> None:
    """BERT's tokenizer, which tells token types, though the model has none."""
    signs = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = _wordpiece([*signs, *_words()])
    backend.add_special_tokens(signs)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    shape = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 64}
    _save(folder, backend, transformers.DistilBertConfig(vocab_size=backend.get_vocab_size(), dropout=0.0, **shape))


def modernbert(folder: Path) -> None:
    """The signs of BERT around byte-level BPE; token types are all 0."""
    signs = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=signs, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    shape = {name: SHAPE[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    config = transformers.ModernBertConfig(
        **shape, **ids, vocab_size=300, intermediate_size=32, max_position_embeddings=64, local_attention=8
    )
    _save(folder, backend, config)


CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "roberta": roberta,
    "xlm-roberta": xlm_roberta,
    "mpnet": mpnet,
    "distilbert": distilbert,
    "modernbert": modernbert,
}


def _words() -> list[str]:
    return sorted({word for text in TEXTS for word in text.split()})


def _wordpiece(words: list[str]) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return backend


def _sized(backend: tokenizers.Tokenizer) -> dict[str, object]:
    return SHAPE | {"vocab_size": backend.get_vocab_size()}


def _save(folder: Path, backend: tokenizers.Tokenizer, config: transformers.PreTrainedConfig) -> None:
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
