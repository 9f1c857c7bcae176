"""Which variant of attention, right or wrong, gives a module's output from its own weights."""
