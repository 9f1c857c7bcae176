"""A forecaster in Keras: the next hour of a time series, from two days before it. Is it better than a naive forecast?

    KERAS_BACKEND=jax python examples/keras_forecaster.py             # or tensorflow, or torch

`use_causal_mask=True` lets each hour look at itself and those before. So every hour of a window is an example: what it
makes of its past is compared with the hour that follows, in one pass.
"""

import keras
import numpy as np
from keras import layers

from headwise.keras import EncoderLayer, MultiHeadAttention, positions

keras.utils.set_random_seed(0)
HOURS, DAY = 48, 24

# 250 days: a daily rhythm, whose size changes over the week, and noise that lasts some hours.
random, hours = np.random.default_rng(0), np.arange(250 * DAY)
noise = np.zeros(len(hours))
for t in hours[1:]:
    noise[t] = 0.8 * noise[t - 1] + 0.1 * random.normal()  # the 0.1 of each hour is news: nobody can forecast it
series = (1 + 0.5 * np.sin(2 * np.pi * hours / (7 * DAY))) * np.sin(2 * np.pi * hours / DAY) + noise
windows = np.lib.stride_tricks.sliding_window_view(series.astype("float32"), HOURS + 1)[..., None]
past, future = windows[:, :-1], windows[:, 1:]  # [windows, 48, 1] each, one hour apart
train, test = slice(0, 200 * DAY, 5), slice(200 * DAY + HOURS, None, 5)  # the last 50 days are kept for the end

inputs = keras.Input((HOURS, 1))
x = layers.Dense(32, bias_initializer=keras.initializers.RandomNormal(stddev=0.5))(inputs)  # a norm leaves no scale
attention = MultiHeadAttention(32, 4, positions=positions.Rope(8))
x = EncoderLayer(32, attention=attention)(x, use_causal_mask=True)
model = keras.Model(inputs, layers.Add()([inputs, layers.Dense(1)(x)]))  # it forecasts the change
model.compile(keras.optimizers.Adam(3e-3), "mse")
model.fit(past[train], future[train], batch_size=32, epochs=6, verbose=0)

truth = future[test, -1, 0]  # the hour after each window
forecasts = {
    "as the hour before": past[test, -1, 0],
    "as a day ago": past[test, -DAY, 0],
    "the model": model.predict(past[test], verbose=0)[:, -1, 0],
}
errors = {name: float(np.sqrt(np.mean((forecast - truth) ** 2))) for name, forecast in forecasts.items()}
for name, error in errors.items():
    print(f"{name:20} RMSE {error:.3f}")
print(f"{'the least there is':20} RMSE 0.100")
