"""A matplotlib figure that shows itself in a notebook, whether or not pyplot is used there."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Picture(Figure):
    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()
