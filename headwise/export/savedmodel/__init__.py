"""Models as TensorFlow SavedModels, converted through their Keras twins (the same model built from Keras layers)."""
