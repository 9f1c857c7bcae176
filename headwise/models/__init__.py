"""Models built on headwise's attention, each a whole model in one file."""

from headwise.models.bert import Bert, BertConfig

__all__ = ["Bert", "BertConfig"]
