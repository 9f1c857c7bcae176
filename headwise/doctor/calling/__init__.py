"""How a module is called: found out from names and by trial, so that nobody writes an adapter."""
