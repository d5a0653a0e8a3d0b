# SPDX-License-Identifier: Apache-2.0 - a training step to be compiled ahead of time: `torch-tpu aot examples/aot_step.py`.
import torch
import torch.nn.functional as F
from torch import nn


def build():
    """A training step, and inputs of the shapes that it gets. Nothing of it takes memory here."""
    with torch.device("tpu"):
        layer = nn.TransformerEncoderLayer(
            1024, 16, 4096, dropout=0.0, batch_first=True, norm_first=True
        )
        model = nn.Sequential(
            nn.Embedding(32000, 1024),
            nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
            nn.Linear(1024, 32000),
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def step(tokens, targets):
        optimizer.zero_grad()
        with torch.autocast("tpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    tokens = torch.empty(8, 512, dtype=torch.int64, device="meta")
    return step, (tokens, tokens)
