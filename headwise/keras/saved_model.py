"""A `.keras` file as a model, with classes of the user's own that are in a file beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import keras

from headwise.errors import ArgumentError


def load_saved(path: Path) -> keras.Model:
    """The model of a `.keras` or `.h5` file, without its optimizer.

    Its own classes are imported from the modules that the file names, in the working directory and its own folder.

    Raises:
        ArgumentError: it cannot be loaded; the message has Keras's reason.
    """
    before = list(sys.path)
    sys.path[:0] = [str(Path.cwd()), str(path.resolve().parent)]
    try:
        return keras.saving.load_model(path, compile=False)
    except Exception as error:
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ArgumentError(
            f"{path}: expected a model that keras.saving.load_model loads. Received: {said[:200]}. If it has classes "
            "of your own, name a function that returns the model, as in my_model.py:make_model"
        ) from error
    finally:
        sys.path[:] = before
