"""A trace of one forward, with marks that say where every number comes from: what a module computes."""
