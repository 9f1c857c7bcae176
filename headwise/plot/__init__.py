"""Figures for papers, with matplotlib (pip install "headwise[plot]").

heatmap     one head: queries down, keys across
heads       every head of every layer as a small map
surface3d   one head as a 3-D surface
lines       queries and keys in two columns, each weight as a line
text        the running text, each token shaded by its weight
mask        which query may attend to which key

Each takes an `AttentionRecord`, or a `Seen` and one `layer` of it; `mask` takes a mask. Each returns a matplotlib
`Figure`, and with `out=` writes it as PNG, SVG or PDF. matplotlib is imported at the first figure. pyplot is not used
and rcParams are not changed.
"""

from headwise.plot.allowed import mask
from headwise.plot.bipartite import lines
from headwise.plot.grid import heads
from headwise.plot.matrix import heatmap
from headwise.plot.running import text
from headwise.plot.surface import surface3d

__all__ = ["heads", "heatmap", "lines", "mask", "surface3d", "text"]
