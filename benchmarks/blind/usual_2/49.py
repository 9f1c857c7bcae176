import torch
import torch.nn as nn
import torch.nn.functional as F


class InteractingLayer(nn.Module):
    """Interacting layer of AutoInt (Song et al., 2019) for CTR prediction.

    Input shape
        - (batch_size, field_size, embedding_size)
    Output shape
        - (batch_size, field_size, embedding_size)

    Arguments
        - **embedding_size**: size of the feature embeddings
        - **head_num**: number of heads
        - **use_res**: add the linear residual W_Res x before the activation
        - **scaling**: divide the inner products by sqrt(embedding_size / head_num). The paper uses
          plain inner products, and so does the default.

    The heads are concatenated and go through a ReLU; the layer has no output projection. The fields
    have no order, their identity is in the embeddings.
    """

    def __init__(self, embedding_size=32, head_num=2, use_res=True, scaling=False):
        super().__init__()
        if embedding_size % head_num != 0:
            raise ValueError("embedding_size is not an integer multiple of head_num!")
        self.head_num = head_num
        self.att_embedding_size = embedding_size // head_num
        self.use_res = use_res
        self.scaling = scaling
        self.W_Query = nn.Parameter(torch.empty(embedding_size, embedding_size))
        self.W_key = nn.Parameter(torch.empty(embedding_size, embedding_size))
        self.W_Value = nn.Parameter(torch.empty(embedding_size, embedding_size))
        if use_res:
            self.W_Res = nn.Parameter(torch.empty(embedding_size, embedding_size))
        for tensor in self.parameters():
            nn.init.normal_(tensor, mean=0.0, std=0.05)

    def forward(self, inputs):
        querys = torch.tensordot(inputs, self.W_Query, dims=([-1], [0]))
        keys = torch.tensordot(inputs, self.W_key, dims=([-1], [0]))
        values = torch.tensordot(inputs, self.W_Value, dims=([-1], [0]))

        # head_num B F D/head_num
        querys = torch.stack(torch.split(querys, self.att_embedding_size, dim=2))
        keys = torch.stack(torch.split(keys, self.att_embedding_size, dim=2))
        values = torch.stack(torch.split(values, self.att_embedding_size, dim=2))

        inner_product = torch.einsum("bnik,bnjk->bnij", querys, keys)
        if self.scaling:
            inner_product /= self.att_embedding_size ** 0.5
        normalized_att_scores = F.softmax(inner_product, dim=-1)
        result = torch.matmul(normalized_att_scores, values)

        result = torch.cat(torch.split(result, 1), dim=-1)
        result = torch.squeeze(result, dim=0)  # B F D
        if self.use_res:
            result = result + torch.tensordot(inputs, self.W_Res, dims=([-1], [0]))
        return F.relu(result)
