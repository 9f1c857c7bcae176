"""The protocols of other systems' clients: Open Inference Protocol and TensorFlow Serving, over HTTP and gRPC."""
