"""A text classifier in Keras: three people review a film. Do two of them like it? And which word was looked at most?

    KERAS_BACKEND=jax python examples/keras_text_classifier.py        # or tensorflow, or torch

Texts differ in length, so they are padded with 0. `Embedding(mask_zero=True)` says which words are real, and Keras
hands that on: attention gives no weight to padding, and the mean at the end leaves it out.
"""

import csv
import itertools
import re
from pathlib import Path

import keras
import numpy as np
from keras import layers

from headwise.keras import MultiHeadAttention, positions

keras.utils.set_random_seed(0)
with open(Path(__file__).with_name("reviews.csv"), encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file))[:48]  # few, so that each of them is in many groups of three
reviews = [re.findall(r"[a-z']+", row["sentence"].lower()) for row in rows]
good = np.array([row["label"] == "good" for row in rows])

WORDS = ["", *sorted({word for review in reviews for word in review})]  # number 0 is padding
threes = np.array(list(itertools.combinations(range(len(reviews)), 3)))
threes = np.random.default_rng(0).permutation(threes)[:1200]  # all different: those to test with are new
texts = [[word for n in three for word in reviews[n]] for three in threes]
liked = (good[threes].sum(1) >= 2).astype("float32")
ids = np.zeros((len(texts), max(map(len, texts))), dtype="int32")
for row, text in zip(ids, texts, strict=True):
    row[: len(text)] = [WORDS.index(word) for word in text]

inputs = keras.Input((ids.shape[1],), dtype="int32")
embedded = layers.Embedding(len(WORDS), 32, mask_zero=True)(inputs)  # [B, S, 32], and a mask [B, S]
attention = MultiHeadAttention(32, 4, positions=positions.Rope(8))  # Rope tells the heads how far words are apart
mixed, weights = attention(embedded, return_attention_scores=True)  # [B, S, 32] and [B, H, S, S]
pooled = layers.GlobalAveragePooling1D()(layers.Add()([embedded, mixed]))  # [B, 32]
model = keras.Model(inputs, layers.Dense(1)(pooled))

model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
model.fit(ids[200:], liked[200:], epochs=8, batch_size=50, verbose=0)

logits, attended = keras.Model(inputs, [model.output, weights]).predict(ids[:200], verbose=0)
accuracy = float(((logits[:, 0] > 0) == liked[:200]).mean())
print(f"accuracy {accuracy:.3f} on combinations it has not seen")
real = ids[:200] != 0
received = (attended.mean(1) * real[:, :, None]).sum(1)  # [B, S]: what a word gets from all real words, mean over heads
strongest = [WORDS[row[n]] for row, n in zip(ids, received.argmax(1), strict=False)]
for text, word, likes in list(zip(texts, strongest, liked, strict=False))[:3]:
    print(f"{'liked' if likes else 'not liked'}, most attention to “{word}”: {' '.join(text)}")
