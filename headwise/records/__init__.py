"""What a call saw, kept in linear memory: the weights are worked out again, exactly, where they are asked for."""

from headwise.records.record import AttentionRecord

__all__ = ["AttentionRecord"]
