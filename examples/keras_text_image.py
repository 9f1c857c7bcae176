"""Text and image in Keras: the words of a question look at the patches of a picture. Does the model use both?

    KERAS_BACKEND=jax python examples/keras_text_image.py             # or tensorflow, or torch

A picture has four patches, a shape in each, in four colours. "what is the red one" cannot be answered from the question
alone, nor from the picture alone. A model of each kind is trained, all three at once.
"""

import keras
import numpy as np
from keras import layers

from headwise.keras import MultiHeadAttention

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
COLOURS, NAMES = ["red", "green", "blue", "grey"], ["ring", "cross", "bar", "dash"]
RGB = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0.5]])
SHAPES = np.array([[1] * 4 + [0] + [1] * 4, [1, 0] * 4 + [1], [0, 1, 0] * 3, [0] * 3 + [1] * 3 + [0] * 3])
WORDS = ["what", "is", "the", "one", *COLOURS]


def examples(count):
    """Questions [B, 5 words], pictures [B, 4 patches, 9 pixels × RGB], the answers [B], and where they are [B]."""
    shapes, colours = random.integers(4, size=(count, 4)), random.permuted(np.tile(np.arange(4), (count, 1)), axis=1)
    patches = np.einsum("bsp,bsc->bspc", SHAPES[shapes], RGB[colours]).reshape(count, 4, 27)
    place = random.integers(4, size=count)  # of the shape that is asked for
    asked, answer = colours[np.arange(count), place], shapes[np.arange(count), place]
    questions = np.array([[WORDS.index(word) for word in f"what is the {COLOURS[c]} one".split()] for c in asked])
    return questions, (patches + 0.2 * random.normal(size=patches.shape)).astype("float32"), answer, place


def answer(features, name):
    hidden = layers.Dense(64, activation="relu")(layers.GlobalAveragePooling1D()(features))
    return layers.Dense(4, name=name)(hidden)


question, picture = keras.Input((5,), dtype="int32"), keras.Input((4, 27))
embed, see = (lambda: layers.Embedding(len(WORDS), 32)(question)), (lambda: layers.Dense(64, "relu")(picture))
words = embed()
looked, weights = MultiHeadAttention(32, 4, kdim=64)(words, see(), return_attention_scores=True)  # [B, 5, 32]
fused = layers.Concatenate()([words, looked])
answers = {"text": answer(embed(), "text"), "image": answer(see(), "image"), "both": answer(fused, "both")}
model = keras.Model([question, picture], answers)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(3e-3), dict.fromkeys(answers, loss))
questions, pictures, right, _ = examples(3000)
model.fit([questions, pictures], dict.fromkeys(answers, right), batch_size=100, epochs=12, verbose=0)

questions, pictures, right, place = examples(1000)
seen = keras.Model([question, picture], {**answers, "weights": weights}).predict([questions, pictures], verbose=0)
accuracy = {name: float((seen[name].argmax(-1) == right).mean()) for name in answers}
print(", ".join(f"{name} {share:.3f}" for name, share in accuracy.items()))
looks = float((seen["weights"][:, :, 3].mean(1).argmax(-1) == place).mean())  # word 3 is the colour
print(f"“{WORDS[questions[0, 3]]}” looks most at the patch of that colour in {looks:.0%} of the pictures")
