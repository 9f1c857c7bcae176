"""The tokens that a model reads, in readable form: tokens of a text with labels, words and sentences, patches of an
image, frames of a sound.

Tokens      one text as a model reads it: the id, the label and the offset of each token
Tokenizer   the tokenizer of a checkpoint
as_tokens   makes Tokens from the output of a Hugging Face tokenizer, or from a list of names
Patches     the tokens of an image
Frames      the tokens of a sound
Groups      which tokens form which word, or which sentence
"""

from headwise.text.frames import Frames
from headwise.text.groups import Groups
from headwise.text.sources import as_tokens
from headwise.text.tokenizer import Tokenizer
from headwise.text.tokens import Patches, Tokens

__all__ = ["Frames", "Groups", "Patches", "Tokenizer", "Tokens", "as_tokens"]
