"""The engine of `headwise serve`: worker processes that run models, and the queues in front of them."""
