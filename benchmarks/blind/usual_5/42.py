import keras
from keras import layers, ops


class SharedKVCausalAttention(layers.Layer):
    """Causal attention in which the keys are also the values, without output projection.

    mask: boolean (batch, time), True on real steps (Keras convention). The last Dense of
    the surrounding block mixes the heads, so that none is needed here.
    """

    def __init__(self, dim=64, num_heads=4, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_query = layers.Dense(dim, use_bias=False)
        self.to_memory = layers.Dense(dim, use_bias=False)

    def _heads(self, x):
        shape = ops.shape(x)
        x = ops.reshape(x, (shape[0], shape[1], self.num_heads, self.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs, mask=None):
        shape = ops.shape(inputs)
        time = shape[1]
        query = self._heads(self.to_query(inputs))
        memory = self._heads(self.to_memory(inputs))

        scores = ops.matmul(query, ops.transpose(memory, (0, 1, 3, 2)))
        scores = scores * self.head_dim ** -0.5

        step = ops.arange(time)
        blocked = ops.cast(step[None, :] > step[:, None], scores.dtype)[None, None]
        if mask is not None:
            padding = 1.0 - ops.cast(mask, scores.dtype)
            blocked = ops.maximum(blocked, padding[:, None, None, :])
        scores = scores + blocked * -1e9

        context = ops.matmul(ops.softmax(scores, axis=-1), memory)
        context = ops.transpose(context, (0, 2, 1, 3))
        return ops.reshape(context, (shape[0], time, self.dim))

    def get_config(self):
        config = super().get_config()
        config.update(dim=self.dim, num_heads=self.num_heads)
        return config
