"""What the server answers over HTTP besides the protocols: a plain route for each task, explanations, health, pages."""
