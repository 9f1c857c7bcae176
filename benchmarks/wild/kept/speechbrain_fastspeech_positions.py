"""The positional embedding is multiplied by the padding mask itself, so real tokens get no position at all.

speechbrain/speechbrain #2276 (2023)
https://github.com/speechbrain/speechbrain/issues/2276
"""
import torch
from torch import nn


def get_key_padding_mask(padded_input, pad_idx):
    """Creates a binary mask to prevent attention to padded locations: True at the padded positions."""
    return padded_input == pad_idx


class PositionalEmbedding(nn.Module):
    """Computation of the positional embeddings.

    Arguments
    ---------
    embed_dim: int
        dimensionality of the embeddings.
    """

    def __init__(self, embed_dim):
        super().__init__()
        inv_freq = 1 / (10000 ** (torch.arange(0.0, embed_dim, 2.0) / embed_dim))
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, seq_len, mask, dtype):
        """
        Arguments
        ---------
        seq_len: int
        mask: torch.tensor
            multiplied with the embeddings, (batch, seq_len)

        Returns
        -------
        pos_emb: torch.Tensor
            (batch, seq_len, embed_dim)
        """
        pos_seq = torch.arange(seq_len, device=mask.device).to(dtype)
        sinusoid_inp = torch.outer(pos_seq, self.inv_freq)
        pos_emb = torch.cat([sinusoid_inp.sin(), sinusoid_inp.cos()], dim=1)
        return pos_emb[None, :, :] * mask[:, :, None]


class _FastSpeech2Base(nn.Module):
    """Phoneme encoder of FastSpeech2: token embedding + positions, then self attention over the phonemes.

    Arguments
    ---------
    enc_d_model: int
        the number of expected features in the encoder
    n_char: int
        the number of symbols for the token embedding
    padding_idx: int
        the index for padding
    """

    def __init__(self, enc_d_model=32, enc_num_head=4, n_char=20, padding_idx=0):
        super().__init__()
        self.padding_idx = padding_idx
        self.encPreNet = nn.Embedding(n_char, enc_d_model, padding_idx=padding_idx)
        self.sinusoidal_positional_embed_encoder = PositionalEmbedding(enc_d_model)
        self.self_att = nn.MultiheadAttention(enc_d_model, enc_num_head, batch_first=True)
        self.norm1 = nn.LayerNorm(enc_d_model)

    def encoder(self, token_feats, pos, srcmask):
        x = token_feats + pos
        att, _ = self.self_att(x, x, x, key_padding_mask=srcmask, need_weights=False)
        return self.norm1(x + att) * (~srcmask).unsqueeze(-1)


def broken() -> nn.Module:
    class FastSpeech2(_FastSpeech2Base):
        def forward(self, tokens):
            srcmask = get_key_padding_mask(tokens, pad_idx=self.padding_idx)
            token_feats = self.encPreNet(tokens)
            pos = self.sinusoidal_positional_embed_encoder(token_feats.shape[1], srcmask, token_feats.dtype)
            return self.encoder(token_feats, pos, srcmask)

    torch.manual_seed(0)
    return FastSpeech2()


def fixed() -> nn.Module:
    class FastSpeech2(_FastSpeech2Base):
        def forward(self, tokens):
            srcmask = get_key_padding_mask(tokens, pad_idx=self.padding_idx)
            srcmask_inverted = ~srcmask
            token_feats = self.encPreNet(tokens)
            pos = self.sinusoidal_positional_embed_encoder(token_feats.shape[1], srcmask_inverted, token_feats.dtype)
            return self.encoder(token_feats, pos, srcmask)

    torch.manual_seed(0)
    return FastSpeech2()


def example():
    return (torch.tensor([[3, 7, 7, 12, 5, 9, 3, 1], [4, 4, 2, 18, 6, 0, 0, 0]]),), {}
