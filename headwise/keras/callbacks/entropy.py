"""The entropy of each head during the training of a Keras model."""

from __future__ import annotations

from headwise.capture.head_means import Sums
from headwise.keras.callbacks.watching import Watching


class AttentionEntropy(Watching):
    """Write the mean entropy of each layer and head on a few examples to TensorBoard after each epoch, in nats.

        callbacks.AttentionEntropy(x[:32], "logs")

        attention/encoder.attention/entropy          the mean over the heads
        attention/encoder.attention/entropy/head_3   -Σ A log A, mean over the examples and the queries that attend to
                                                     anything

    Log K = equal attention to K keys, 0 = attention to a single key. When entropies collapse, training becomes unstable
    (Zhai et al. 2023, arXiv:2303.06296). The numbers are those of `headwise.capture.monitor`; queries that are padding
    count too. The model runs in inference mode: the weights are those without dropout.

    Args:
        x: examples, as the model takes them: an array, or a list or dict of arrays. They are one batch.
        log_dir: the folder of the event file.
        every: write after every n-th epoch.
        only: the layers to record: numbers, paths or patterns, as for `headwise.watch`. None = all layers.
        prefix: the first part of the names in TensorBoard.

    Raises:
        ArgumentError, DtypeError: an invalid option; the message names it.
    """

    def log(self, step: int) -> None:
        sums: dict[str, Sums] = {}
        for site, record in self.records():
            found = Sums.of(record)
            sums[site.name] = sums[site.name] + found if site.name in sums else found
        scalars = {}
        for name, of_layer in sums.items():
            heads = of_layer.means()["entropy"].tolist()
            scalars[f"{name}/entropy"] = sum(heads) / len(heads)
            scalars |= {f"{name}/entropy/head_{head}": value for head, value in enumerate(heads)}
        self.write(step, scalars=scalars)
