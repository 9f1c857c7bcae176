"""Show, Attend and Tell (soft attention) with a small CNN trained from scratch."""
import torch
import torch.nn as nn


class Encoder(nn.Module):
    def __init__(self, out_dim):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(64, out_dim, 3, stride=2, padding=1), nn.ReLU(),
        )

    def forward(self, images):
        feats = self.net(images)
        return feats.flatten(2).transpose(1, 2)  # (B, pixels, out_dim)


class Attention(nn.Module):
    def __init__(self, encoder_dim, decoder_dim, attention_dim):
        super().__init__()
        self.encoder_att = nn.Linear(encoder_dim, attention_dim)
        self.decoder_att = nn.Linear(decoder_dim, attention_dim)
        self.full_att = nn.Linear(attention_dim, 1)

    def forward(self, encoder_out, hidden):
        att = torch.tanh(self.encoder_att(encoder_out) + self.decoder_att(hidden).unsqueeze(1))
        alpha = torch.softmax(self.full_att(att).squeeze(2), dim=1)
        return (encoder_out * alpha.unsqueeze(2)).sum(dim=1), alpha


class ImageCaptioner(nn.Module):
    """Teacher-forced captioning; ``captions`` is <start> w1 ... wn <end> <pad>...

    ``forward`` returns logits for captions[:, 1:] and the attention maps. Steps at or after
    a caption's last token (``lengths`` counts <start> and <end>) are zero and must not be scored.
    """

    def __init__(self, vocab_size=1000, embed_dim=64, decoder_dim=128, encoder_dim=128,
                 attention_dim=64, dropout=0.5):
        super().__init__()
        self.encoder = Encoder(encoder_dim)
        self.attention = Attention(encoder_dim, decoder_dim, attention_dim)
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.decode_step = nn.LSTMCell(embed_dim + encoder_dim, decoder_dim)
        self.init_h = nn.Linear(encoder_dim, decoder_dim)
        self.init_c = nn.Linear(encoder_dim, decoder_dim)
        self.f_beta = nn.Linear(decoder_dim, encoder_dim)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(decoder_dim, vocab_size)

    def _init_state(self, feats):
        mean = feats.mean(dim=1)
        return torch.tanh(self.init_h(mean)), torch.tanh(self.init_c(mean))

    def _step(self, word, feats, state):
        h, c = state
        context, alpha = self.attention(feats, h)
        context = torch.sigmoid(self.f_beta(h)) * context
        h, c = self.decode_step(torch.cat([self.embedding(word), context], dim=1), (h, c))
        return self.fc(self.dropout(h)), alpha, (h, c)

    def forward(self, images, captions, lengths):
        feats = self.encoder(images)
        state = self._init_state(feats)
        logits, alphas = [], []
        for t in range(captions.size(1) - 1):
            step_logits, alpha, state = self._step(captions[:, t], feats, state)
            active = (t < lengths - 1).unsqueeze(1).to(step_logits.dtype)
            logits.append(step_logits * active)
            alphas.append(alpha * active)
        return torch.stack(logits, dim=1), torch.stack(alphas, dim=1)

    @staticmethod
    def attention_penalty(alphas, lengths):
        """Doubly stochastic regulariser: each pixel should get about the same total attention."""
        target = (lengths - 1).unsqueeze(1) / alphas.size(2)
        return ((target - alphas.sum(dim=1)) ** 2).mean()

    @torch.no_grad()
    def caption(self, images, start_id, end_id, max_len=20):
        was_training = self.training
        self.eval()
        feats = self.encoder(images)
        state = self._init_state(feats)
        word = torch.full((images.size(0),), start_id, dtype=torch.long, device=images.device)
        done = torch.zeros_like(word, dtype=torch.bool)
        words = []
        for _ in range(max_len):
            logits, _, state = self._step(word, feats, state)
            word = logits.argmax(dim=1).masked_fill(done, end_id)
            words.append(word)
            done = done | (word == end_id)
            if done.all():
                break
        self.train(was_training)
        return torch.stack(words, dim=1)
