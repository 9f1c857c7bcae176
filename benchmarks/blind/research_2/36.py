import keras
from keras import layers


class TransformerEncoder(layers.Layer):
    """Post-norm transformer encoder block for text classification.

    Accepts the mask of ``Embedding(mask_zero=True)`` (True for tokens).
    """

    def __init__(self, embed_dim=32, dense_dim=64, num_heads=2, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.embed_dim = embed_dim
        self.dense_dim = dense_dim
        self.num_heads = num_heads
        self.rate = rate
        self.attention = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim // num_heads)
        self.dense_proj = keras.Sequential(
            [
                layers.Dense(dense_dim, activation="relu"),
                layers.Dense(embed_dim),
            ]
        )
        self.layernorm_1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm_2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout_1 = layers.Dropout(rate)
        self.dropout_2 = layers.Dropout(rate)
        self.supports_masking = True

    def call(self, inputs, training=None, mask=None):
        attention_mask = None
        if mask is not None:
            attention_mask = mask[:, None, :]
        attention_output = self.attention(
            inputs, inputs, attention_mask=attention_mask, training=training
        )
        attention_output = self.dropout_1(attention_output, training=training)
        proj_input = self.layernorm_1(inputs + attention_output)
        proj_output = self.dense_proj(proj_input)
        proj_output = self.dropout_2(proj_output, training=training)
        return self.layernorm_2(inputs + proj_output)

    def get_config(self):
        config = super().get_config()
        config.update(
            {
                "embed_dim": self.embed_dim,
                "dense_dim": self.dense_dim,
                "num_heads": self.num_heads,
                "rate": self.rate,
            }
        )
        return config
