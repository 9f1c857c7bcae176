"""What clients of other systems speak: the Open Inference Protocol and TensorFlow Serving's, over HTTP and gRPC."""
