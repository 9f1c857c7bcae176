"""`headwise.watch` for Keras models, as `headwise.capture` is for torch modules."""

from headwise.keras.watching.context import watch

__all__ = ["watch"]
