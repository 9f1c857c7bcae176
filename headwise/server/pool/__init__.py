"""The engine of `headwise serve`: processes that run models, and the queue in front of them."""
