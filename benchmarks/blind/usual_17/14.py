import keras
from keras import layers


class CrossModalBlock(keras.layers.Layer):
    """Text tokens look at image patches.

    Keys come from the patch features with their position code added, values from the
    patch features alone (as in DETR).
    """

    def __init__(self, dim=64, num_heads=4, ff_dim=128, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.cross = layers.MultiHeadAttention(num_heads=num_heads, key_dim=dim // num_heads, dropout=rate)
        self.norm1 = layers.LayerNormalization(epsilon=1e-6)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)
        self.ff1 = layers.Dense(ff_dim, activation="gelu")
        self.ff2 = layers.Dense(dim)
        self.drop = layers.Dropout(rate)

    def call(self, text, patches, patch_pos, training=False):
        """
        text:      (batch, n_text, dim)
        patches:   (batch, n_patches, dim)
        patch_pos: (batch, n_patches, dim)
        """
        q = text
        k = patches + patch_pos
        v = patches
        attended = self.cross(q, k, v, training=training)
        text = self.norm1(text + self.drop(attended, training=training))
        hidden = self.ff2(self.ff1(text))
        return self.norm2(text + self.drop(hidden, training=training))
