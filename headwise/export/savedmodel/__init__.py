"""Models as TensorFlow SavedModels, by way of their Keras twins."""
