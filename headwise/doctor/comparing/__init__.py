"""Two modules with the same weights: whether they compute the same, and the first operation where they differ."""
