"""The words that fix each broken specimen: what its source says, and what it should say."""

from __future__ import annotations

FIXES: dict[str, tuple[tuple[str, str], ...]] = {
    "einsum.SelfAttention": (
        ("self.embed_size ** (1 / 2)", "self.head_dim ** (1 / 2)"),
        *(
            (f"self.{name} = nn.Linear(self.head_dim, self.head_dim", f"self.{name} = nn.Linear(embed_size, embed_size")
            for name in ("values", "keys", "queries")
        ),
        ("values = values.reshape(", "values = self.values(values).reshape("),
        ("keys = keys.reshape(", "keys = self.keys(keys).reshape("),
        ("queries = query.reshape(", "queries = self.queries(query).reshape("),
        (
            "        values = self.values(values)\n        keys = self.keys(keys)\n"
            "        queries = self.queries(queries)\n",
            "",
        ),
    ),
    "einsum.Attention": (("dim=2)", "dim=3)"),),
    "einsum.CausalTensorAttention": (('"bhqd,bhkd->bhqk", q, k)', '"bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5'),),
    "einsum.SpatialAttention": (("dim=1)", "dim=2)"),),
    "einsum.EinsumSelfAttention": (('"bhij,bihd->bjhd"', '"bhij,bjhd->bihd"'),),
    "einsum.ContextEinsumAttention": (("dim=2)", "dim=-1)"),),
    "sdpa.GPTAttention": (("dropout_p=self.dropout,", "dropout_p=self.dropout if self.training else 0.0,"),),
    "sdpa.PaddedSelfAttention": (("key_padding_mask[:, None, None, :]", "~key_padding_mask[:, None, None, :]"),),
    "sdpa.MaskedSelfAttention": ((".to(q.dtype)", ".bool()"),),
    "sdpa.DecoderAttention": (("is_causal=True)", "attn_mask=torch.ones(t, k.size(2)).tril(k.size(2) - t).bool())"),),
    "sdpa.LocalAttention": (("distance <= self.window + 1", "distance < self.window"),),
    "sdpa.PackedSequenceAttention": (("is_causal=True", "attn_mask=same.tril().unsqueeze(1)"),),
    "sdpa.ExplainableAttention": (
        (
            "weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)",
            "scores = q @ k.mT / q.shape[-1] ** 0.5\n"
            "            scores = scores if mask is None else scores.masked_fill(~mask, -1e9)\n"
            "            weights = torch.softmax(scores, dim=-1)",
        ),
    ),
    "grouped.GQA": (
        (
            "k = self.k_proj(x).view(b, n, self.n_kv_heads, -1).transpose(1, 2).repeat(1, n_rep, 1, 1)",
            "k = self.k_proj(x).view(b, n, self.n_kv_heads, -1).transpose(1, 2).repeat_interleave(n_rep, 1)",
        ),
        (
            "v = self.v_proj(x).view(b, n, self.n_kv_heads, -1).transpose(1, 2).repeat(1, n_rep, 1, 1)",
            "v = self.v_proj(x).view(b, n, self.n_kv_heads, -1).transpose(1, 2).repeat_interleave(n_rep, 1)",
        ),
    ),
    "grouped.GroupedAttention": (
        ("k, v = expand_kv(k, groups), expand_kv(v, groups)", "k, v = repeat_kv(k, groups), repeat_kv(v, groups)"),
    ),
    "grouped.FusedAttention": (("k, q, v = qkv", "q, k, v = qkv"),),
    "grouped.QKVAttention": (("q, v, k = self.c_qkv", "q, k, v = self.c_qkv"),),
    "classic.MultiHeadAttention": (("self.w_k(value)", "self.w_v(value)"),),
    "classic.SourceTargetAttention": (("attention(q, v, k, mask=mask)", "attention(q, k, v, mask=mask)"),),
    "classic.MultiHead": (
        (
            "tensor.view(batch_size, self.n_head, length, d_model // self.n_head)",
            "tensor.view(batch_size, length, self.n_head, d_model // self.n_head).transpose(1, 2)",
        ),
    ),
    "classic.MultiheadAttention": (("values.reshape(batch_size, ", "values.transpose(1, 2).reshape(batch_size, "),),
    "classic.CourseAttention": (
        ("F.softmax(self.dropout(scores), dim=-1)", "self.dropout(F.softmax(scores, dim=-1))"),
    ),
    "classic.ParallelAttention": (("self.p)\n", "self.p, self.training)\n"),),
    "heads.BigramAttention": (("* C**-0.5", "* k.shape[-1]**-0.5"),),
    "heads.MultiHeadAttentionWrapper": (("keys.shape[-1] ** 0.5, dim=1", "keys.shape[-1] ** 0.5, dim=-1"),),
    "heads.HeadsModule": (
        (
            "self.heads = [SelfAttentionHead(embed_dim, head_dim) for _ in range(num_heads)]",
            "self.heads = nn.ModuleList(SelfAttentionHead(embed_dim, head_dim) for _ in range(num_heads))",
        ),
    ),
    "heads.JoinedHeads": (("return x", "return self.output_linear(x)"),),
    "heads.LanguageModelHead": ((", diagonal=1)", ")"),),
    "heads.MinimalGPTAttention": (("-10.0", 'float("-inf")'),),
    "heads.TinyGPTAttention": (("torch.triu(", "torch.tril("),),
    "packed.BatchFirstAttention": (
        ("self.in_proj(x).chunk", "self.in_proj(x.transpose(0, 1)).chunk"),
        (".view(bsz, seq_len, embed_dim)", ".view(seq_len, bsz, embed_dim).transpose(0, 1)"),
    ),
    "packed.BartAttention": (("key_states.transpose(1, 2)) * self.scaling", "key_states.transpose(1, 2))"),),
    "packed.SplitHeadsAttention": (("mask.repeat_interleave(self.n_head, dim=0)", "mask.repeat(self.n_head, 1, 1)"),),
    "packed.PackedHeadsAttention": (("mask.repeat(h, 1)", "mask.repeat_interleave(h, 0)"),),
    "packed.ClassifierAttention": (
        (
            "Q = self.fc_Q(x).view(batch_size * self.num_head, -1, self.dim_head)",
            "Q = self.fc_Q(x).unflatten(-1, (self.num_head, -1)).transpose(1, 2).flatten(0, 1)",
        ),
        (
            "K = self.fc_K(x).view(batch_size * self.num_head, -1, self.dim_head)",
            "K = self.fc_K(x).unflatten(-1, (self.num_head, -1)).transpose(1, 2).flatten(0, 1)",
        ),
        (
            "V = self.fc_V(x).view(batch_size * self.num_head, -1, self.dim_head)",
            "V = self.fc_V(x).unflatten(-1, (self.num_head, -1)).transpose(1, 2).flatten(0, 1)",
        ),
        (
            "context.view(batch_size, -1, self.dim_head * self.num_head)",
            "context.unflatten(0, (batch_size, -1)).transpose(1, 2).flatten(2)",
        ),
    ),
    "packed.ProjectedAttention": (
        ("view(self.num_heads, batch_size, -1", "view(batch_size, self.num_heads, -1"),
        ("output.permute(1, 2, 0, 3)", "output.permute(0, 2, 1, 3)"),
    ),
    "rotary.RotaryAttention": (
        ("q * cos + rotate_every_two(q) * sin", "q * cos + rotate_half(q) * sin"),
        ("k * cos + rotate_every_two(k) * sin", "k * cos + rotate_half(k) * sin"),
    ),
    "rotary.RoPESelfAttention": (
        (
            "k = self.k(x).view(b, n, self.heads, self.head_dim).transpose(1, 2)",
            "k = self.rope(self.k(x).view(b, n, self.heads, self.head_dim).transpose(1, 2))",
        ),
    ),
    "rotary.RotaryQKVAttention": (
        ("q, k, v = qkv.unbind(0)", "q, k, v = qkv[0], qkv[1], plain"),
        ("        qkv = qkv * cos", "        plain = qkv[2]\n        qkv = qkv * cos"),
    ),
    "rotary.LongContextAttention": (
        (
            "t = torch.arange(x.shape[-2], device=x.device, dtype=self.inv_freq.dtype)",
            "t = torch.arange(x.shape[-2], device=x.device).float()",
        ),
        ("torch.outer(t, self.inv_freq)", "torch.outer(t, self.table)"),
        ('self.register_buffer("inv_freq", inv_freq, persistent=False)', "self.table = inv_freq"),
    ),
    "rotary.CachedRotaryAttention": (
        ("rope_tables(n, self.head_dim, device=x.device)", "rope_tables(n, self.head_dim, past, device=x.device)"),
    ),
    "rotary.StretchedAttention": (("base = self.base(past + n)", "base = self.base(self.max_positions)"),),
    "rotary.PromptAttention": (
        ("torch.arange(n, device=x.device).expand(b, n)", "(attention_mask.long().cumsum(-1) - 1).clamp(min=0)"),
    ),
    "rotary.LatentAttention": (
        (
            "return cos * m, sin * m",
            "m = m / yarn_get_mscale(self.factor, self.mscale_all_dim)\n        return cos * m, sin * m",
        ),
    ),
    "biases.AlibiSelfAttention": (
        ("[2 ** (-8 * (i + 1) / num_heads) for i in range(num_heads)]", "get_slopes(num_heads)"),
    ),
    "biases.T5Attention": (("attn_mask=bias)", "attn_mask=bias, scale=1.0)"),),
    "eager.EagerAttention": (("attn_weights.mean(dim=1)", "attn_weights"),),
    "eager.PaddedEncoderAttention": (("attention_mask[:, None, :, None]", "attention_mask[:, None, None, :]"),),
    "eager.DeviceAttention": (("-1e20", "torch.finfo(attn.dtype).min"),),
    "eager.FastViTAttention": (("attn.to(torch.float16), dim=-1", "attn.float(), dim=-1"),),
    "eager.ViTAttention": (("self.scale = dim**-0.5", "self.scale = (dim // heads) ** -0.5"),),
    "eager.LatentQueries": (("q, k) / self.scale", "q, k) * self.scale"),),
    "eager.LayerAttention": (("mask * -1e9", "(1 - mask.to(logits.dtype)) * -1e9"),),
    "layers.CrossDecoderLayer": (("memory, memory, x_mask", "memory, memory, memory_mask"),),
    "layers.CrossAttention": (
        ("if query_mask is not None", "if key_mask is not None"),
        ("~query_mask[:, None", "~key_mask[:, None"),
    ),
    "course.MaskedAttention": (("            scores.masked_fill(", "            scores = scores.masked_fill("),),
    "course.TokenAttention": (("keep[:, None, None, :] == 1", "keep[:, None, None, :] == 0"),),
    "course.DotProductAttention": (("== 0, 1e-9", "== 0, -1e9"),),
    "course.GraphAttention": (("scores * mask.unsqueeze(1)", "scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)"),),
    "course.VisibleAttention": (
        (
            "weights * mask[:, None]",
            "weights * mask[:, None]\n            weights = weights / weights.sum(-1, keepdim=True)",
        ),
    ),
    "course.SentenceAttention": (("padding_mask.unsqueeze(1).unsqueeze(3)", "padding_mask.unsqueeze(1).unsqueeze(2)"),),
    "course.PaddedCausalAttention": (
        ("weights = F.softmax(scores, dim=-1)", "weights = F.softmax(scores, dim=-1).masked_fill(~visible, 0.0)"),
    ),
    "course.BufferAttention": (
        (
            "        q, k, v = self.project(x, x, x)\n",
            "        kept = x if mask is None else torch.where(mask[..., None] == 0, 0.0, x)\n"
            "        q, k, v = self.project(x, kept, kept)\n",
        ),
    ),
    "course.ScratchAttention": (("torch.exp(scores)", "torch.exp(scores - scores.amax(-1, keepdim=True))"),),
    "course.MapAttention": (("F.softmax(scores, dim=-1).detach()", "F.softmax(scores, dim=-1)"),),
    "course.ClipAttention": (("(t.squeeze() for t in self.project(x, x, x))", "self.project(x, x, x)"),),
    "course.NormAttention": (("self.q_norm(q), self.q_norm(k)", "self.q_norm(q), self.k_norm(k)"),),
    "course.FastAttention": (("math.sqrt(self.dim)", "math.sqrt(self.head_dim)"),),
    "course.FlatAttention": (("x.view(b * n, d)", "x.reshape(b * n, d)"),),
    "course.QueryAttention": (("query /= math.sqrt(self.head_dim)", "query = query / math.sqrt(self.head_dim)"),),
    "course.HeadsAttention": (
        (
            "        self.num_heads = num_heads\n",
            "        assert embed_dim % num_heads == 0\n        self.num_heads = num_heads\n",
        ),
    ),
    "course.AssignmentAttention": (
        ("torch.matmul(q, k.permute(0, 1, 3, 2))", "torch.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(q.shape[-1])"),
        ("torch.matmul(weights, v).contiguous()", "torch.matmul(weights, v).transpose(1, 2).contiguous()"),
    ),
}
