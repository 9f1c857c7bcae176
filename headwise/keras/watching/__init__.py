"""`headwise.watch` for Keras models: records their attention while they run. (`headwise.capture`: for torch.)"""

from headwise.keras.watching.context import watch

__all__ = ["watch"]
