import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from keras import layers, ops


class TransformerEncoderBlock(layers.Layer):
    """Pre-norm encoder block.

    `mask` is the usual Keras mask, (batch, seq) with True for real tokens. It goes to the attention as
    (batch, 1, seq): Keras masks positions where `attention_mask` is False. Padded queries still get
    an output, which the mask hides from later layers.
    """

    def __init__(self, dim=64, num_heads=4, mlp_dim=128, dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.norm1 = layers.LayerNormalization(epsilon=1e-6)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)
        self.attn = layers.MultiHeadAttention(num_heads=num_heads, key_dim=dim // num_heads, dropout=dropout)
        self.fc1 = layers.Dense(mlp_dim, activation="gelu")
        self.fc2 = layers.Dense(dim)
        self.drop = layers.Dropout(dropout)

    def call(self, inputs, mask=None, training=None):
        attention_mask = None
        if mask is not None:
            attention_mask = ops.expand_dims(ops.cast(mask, "bool"), axis=1)
        y = self.norm1(inputs)
        y = self.attn(y, y, attention_mask=attention_mask, training=training)
        x = inputs + self.drop(y, training=training)
        y = self.fc2(self.fc1(self.norm2(x)))
        return x + self.drop(y, training=training)
