"""`headwise serve`: serves trained tasks and exports over HTTP and gRPC, in protocols that clients already use.

One process handles the network (`routes/`, `protocols/`). Worker processes run the models (`pool/`). They exchange
rows. A row is one example, a dict with a value for each named column. An `Interface` (in `interfaces/`) lets a worker
call any model with rows, whatever runs the model. An `Engine` is what a protocol calls to get answers to rows. So a
protocol knows no task, a task knows no protocol, and neither knows about batches.
"""
