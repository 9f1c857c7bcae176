"""`headwise.watch` for Keras models, like `headwise.capture` for torch modules."""

from headwise.keras.watching.context import watch

__all__ = ["watch"]
