# SPDX-License-Identifier: Apache-2.0 - training steps of models shaped like Qwen3, for all devices of a pod that is not here.
"""torch-tpu aot examples/aot_qwen3.py --topology v5p:4x4x4

QWEN3=8b (FSDP over all devices) or QWEN3=235b-a22b (experts over 16 devices, FSDP over 512, replicas of
those; for tpu7x:16x16x32), LAYERS=2 for fewer of them, BATCH=1 sequences of SEQUENCE=4096 tokens for each
device. Computes in bfloat16, keeps weights and AdamW's state in float32. The model and how it is laid out
with init_device_mesh and fully_shard: torch_tpu/_decoder.py; `torch-tpu plan` looks for the best layout.
"""

import dataclasses
import os

import torch.distributed as dist

from torch_tpu.plan import CONFIGS, Layout, training_step


def build():
    config = CONFIGS["qwen3-" + os.environ.get("QWEN3", "8b")]
    layers = int(os.environ.get("LAYERS", config.layers))
    world = dist.get_world_size()
    layout = Layout(world // 512, 32, expert=16) if config.experts else Layout(shard=world)
    batch, length = int(os.environ.get("BATCH", 1)), int(os.environ.get("SEQUENCE", 4096))
    return training_step(dataclasses.replace(config, layers=layers), layout, batch * world, length)
