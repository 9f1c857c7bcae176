"""HTTP routes besides the protocols: a plain route for each task, explanations, health, pages."""
