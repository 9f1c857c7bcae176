"""Layers as people write them, each with mistakes that can be put in: `wrong` names one, "" is the healthy form."""
