"""BERT (Devlin et al. 2018, arXiv:1810.04805). The E5 and GTE models of 2023, BGE and MiniLM are BERTs too."""

from headwise.models.families.family import Family

SETTINGS = {
    "vocab_size": "vocab_size",
    "dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "ffn_dim": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "num_token_types": "type_vocab_size",
    "hidden_act": "hidden_act",
    "layer_norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}

TENSORS = {
    "embeddings.word": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.token_type": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "attention.qkv": "attention.self.query attention.self.key attention.self.value",
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "mlp_norm": "output.LayerNorm",
    "pooler": "pooler.dense",
}

FAMILY = Family(name="bert", model_types=("bert",), prefix="bert.", settings=SETTINGS, tensors=TENSORS)
