"""How a record shows itself in a notebook: by the viewer.

The viewer stands above this layer, which knows nothing of it: it is looked up by name when a notebook asks, and not
imported, so that the layers below work without it and `import headwise` stays quick.
"""

from __future__ import annotations

import importlib
from typing import Any

Bundle = dict[str, Any]  # by MIME type


def mimebundle(shown: object) -> tuple[Bundle, Bundle]:
    """What a cell shows of a record or of a Seen, and its metadata."""
    found: tuple[Bundle, Bundle] = importlib.import_module("headwise.viewer.notebook").mimebundle(shown)
    return found
