"""`headwise serve`: trained tasks and exports over HTTP and gRPC, in protocols that clients already speak.

One process answers the network (`routes/`, `protocols/`), and workers, processes of their own, run the models
(`pool/`). Between them stand rows: `Interface` is a model as rows of named columns, whatever runs it (`interfaces/`);
`Engine` is what a protocol asks. So a protocol knows no task, a task knows no protocol, and neither knows how batches
are made.
"""
