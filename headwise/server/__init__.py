"""`headwise serve`: serves trained tasks and exports over HTTP and gRPC, in protocols that clients already use.

One process handles the network (`routes/`, `protocols/`). Worker processes run the models (`pool/`). They exchange
rows: an `Interface` (in `interfaces/`) presents a model as rows of named columns, whatever runs the model, and an
    `Engine` is what a protocol calls. So a protocol knows no task, a task knows no protocol, and neither knows about
    batches.
"""
