"""`headwise.watch` for Keras models: what `headwise.capture` is to torch modules."""

from headwise.keras.watching.context import watch

__all__ = ["watch"]
