"""`train_wordpieces`: the subwords of a BERT, learned from the texts of a task.

WordPiece (Schuster & Nakajima 2012; Devlin et al. 2018, section 3): text is split at spaces and punctuation, Chinese
at every character, and words into pieces, of which all but the first begin with ##.
"""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from headwise.errors import ArgumentError
from headwise.text import Tokenizer

PAD, UNKNOWN, BEGIN, END, MASK = SIGNS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
INSIDE = "##"  # before a piece that continues a word


def train_wordpieces(texts: Iterable[str], size: int, *, lowercase: bool = False) -> Tokenizer:
    """The wordpieces of some texts: the same texts give the same ones.

    Args:
        texts: what they are learned from.
        size: how many tokens at most, signs counted. Fewer if no more pieces stand in the texts twice; more where the
            texts have more characters, since each has a token.
        lowercase: whether case and accents are taken off, as in an uncased BERT.

    Raises:
        ArgumentError: no room for the signs, or no texts.
    """
    if size <= len(SIGNS):
        raise ArgumentError(f"vocab_size: expected more than {len(SIGNS)} tokens, those of the signs. Received: {size}")
    texts = list(texts)
    learner = _backend(models.WordPiece(unk_token=UNKNOWN), lowercase)
    insides = [f"{INSIDE}{character}" for character in sorted(_inside_words(learner, texts))]
    # The trainer gives the pieces inside words their ids in the order of a hash table, and among pairs that are equally
    # frequent joins those with the lowest ids. Named beforehand, they have an order.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, special_tokens=[*SIGNS, *insides], show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    vocabulary = learner.get_vocab()
    if len(vocabulary) == len(SIGNS):
        raise ArgumentError("the texts have no words to learn a vocabulary from")

    backend = _backend(models.WordPiece(vocabulary, unk_token=UNKNOWN), lowercase)
    backend.decoder = decoders.WordPiece()
    signs = [(name, backend.token_to_id(name)) for name in (BEGIN, END)]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}", pair=f"{BEGIN} $A {END} $B:1 {END}:1", special_tokens=signs
    )
    backend.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True) for name in SIGNS])
    return Tokenizer(backend)


def _backend(model: models.WordPiece, lowercase: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return backend


def _inside_words(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> set[str]:
    """Every character that stands in a word, but not at its beginning."""
    words: set[str] = set()
    for text in texts:
        normal = backend.normalizer.normalize_str(text)
        words.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal))
    return {character for word in words for character in word[1:]}
