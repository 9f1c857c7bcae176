"""The format SavedModel of TensorFlow: a model is converted through its Keras twin (the same model of Keras layers)."""
