"""How a module is called: found from names and by trial, so that nobody has to write an adapter."""
