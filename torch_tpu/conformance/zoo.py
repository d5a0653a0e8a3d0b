# SPDX-License-Identifier: Apache-2.0 - tiny models of transformers and diffusers, made from configs with random weights.
"""One entry an architecture: its class, its config, its inputs. Nothing is downloaded, and nothing of the
libraries is imported before an entry is made."""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import torch

VOCABULARY, BATCH, LENGTH = 96, 2, 10
_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_DECODER = {**_TEXT, "num_key_value_heads": 2}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "num_channels": 3,
}


@dataclasses.dataclass(frozen=True)
class Model:
    """`make()` is the module on the CPU; `inputs(module)` its keyword arguments, labels among them."""

    name: str
    cls: str
    make: Callable[[], torch.nn.Module]
    inputs: Callable[[torch.nn.Module], dict[str, Any]]

    @property
    def library(self) -> str:
        return self.cls.partition(".")[0]


by_name: dict[str, Model] = {}


def _find(path: str):
    home, _, name = path.partition(".")
    return getattr(importlib.import_module(home), name)


def _add(name, cls, make, inputs) -> None:
    by_name[name] = Model(name, cls, make, inputs)


def ids(low: int = 3, rows: int = BATCH, length: int = LENGTH) -> torch.Tensor:
    """Tokens without the special ones."""
    return torch.randint(low, VOCABULARY, (rows, length))


def image(size: int = 32, channels: int = 3) -> torch.Tensor:
    return torch.randn(BATCH, channels, size, size)


def classes(count: int = 2, *shape: int) -> torch.Tensor:
    return torch.randint(0, count, shape or (BATCH,))


# ---- transformers ----


def _transformer(name, suffix, inputs, config=None, **given) -> None:
    """`nameConfig` with these fields, the class `name` + suffix."""

    def make():
        settings = _find(f"transformers.{config or name}Config")(**given)
        return _find(f"transformers.{name}{suffix}")(settings)

    _add(name, f"transformers.{name}{suffix}", make, inputs)


def _language(_) -> dict:
    tokens = ids()
    return {"input_ids": tokens, "labels": tokens}


def _padded(_) -> dict:
    """A batch of sentences of different length."""
    tokens, mask = ids(), torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, 7:] = 0
    labels = torch.where(mask.bool(), tokens, -100)
    return {"input_ids": tokens * mask, "attention_mask": mask, "labels": labels}


def _decoder(name, *drop, suffix="ForCausalLM", config=None, **extra) -> None:
    given = {k: v for k, v in _DECODER.items() if k not in drop}
    _transformer(name, suffix, _language, config, **{**given, **extra})


def _encoder(name, *drop, suffix="ForMaskedLM", **extra) -> None:
    given = {k: v for k, v in _TEXT.items() if k not in drop}
    _transformer(name, suffix, _padded, **{**given, **extra})


def _picture(name, *drop, suffix="ForImageClassification", size=32, **extra) -> None:
    given = {k: v for k, v in _VISION.items() if k not in drop}
    _transformer(
        name,
        suffix,
        lambda _: {"pixel_values": image(size), "labels": classes()},
        **{**given, **extra},
    )


_OLD = ("num_key_value_heads", "intermediate_size")
_RECURRENT = (*_OLD, "num_attention_heads", "max_position_embeddings")
_STAGES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")

_decoder("Llama")
_decoder(
    "Llama4",
    config="Llama4Text",
    head_dim=8,
    intermediate_size_mlp=64,
    num_local_experts=2,
    num_experts_per_tok=1,
    interleave_moe_layer_step=2,
)
_decoder("Qwen2")
_decoder("Qwen3", head_dim=8)
_decoder("Qwen3Moe", head_dim=8, num_experts=4, **_EXPERTS)
_decoder(
    "Qwen3Next",
    head_dim=8,
    num_experts=4,
    shared_expert_intermediate_size=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    layer_types=["linear_attention", "full_attention"],
    **_EXPERTS,
)
_decoder("Gemma", head_dim=8)
_decoder("Gemma2", head_dim=8, sliding_window=4, query_pre_attn_scalar=8)
_decoder(
    "Gemma3",
    config="Gemma3Text",
    head_dim=8,
    sliding_window=4,
    query_pre_attn_scalar=8,
    layer_types=["sliding_attention", "full_attention"],
)
_decoder("Mistral", sliding_window=4)
_decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
_decoder(
    "GptOss",
    head_dim=8,
    num_local_experts=4,
    num_experts_per_tok=2,
    sliding_window=4,
    layer_types=["sliding_attention", "full_attention"],
)
_decoder(
    "DeepseekV3",
    num_key_value_heads=4,
    n_routed_experts=8,
    n_group=2,
    topk_group=1,
    kv_lora_rank=16,
    q_lora_rank=16,
    qk_rope_head_dim=4,
    qk_nope_head_dim=4,
    v_head_dim=8,
    first_k_dense_replace=1,
    **_EXPERTS,
)
_decoder("Phi", *_OLD[:1])
_decoder("Phi3")
_decoder("Phimoe", num_local_experts=4, num_experts_per_tok=2)
_decoder("Olmo")
_decoder("Olmo2")
_decoder("Olmoe", num_experts=4, num_experts_per_tok=2)
_decoder("Falcon", *_OLD, new_decoder_architecture=True, num_kv_heads=2)
_decoder("GPT2", *_OLD, suffix="LMHeadModel", n_inner=64)
_decoder(
    "GPTNeo",
    *_OLD,
    "num_hidden_layers",
    "num_attention_heads",
    num_layers=2,
    num_heads=4,
    intermediate_size=64,
    attention_types=[[["global", "local"], 1]],
    window_size=4,
)
_decoder("GPTNeoX", "num_key_value_heads")
_decoder("GPTJ", *_OLD, rotary_dim=4)
_decoder("Bloom", *_OLD)
_decoder("OPT", *_OLD, ffn_dim=64, word_embed_proj_dim=32)
_decoder("Mpt", *_DECODER, vocab_size=VOCABULARY, d_model=32, n_heads=4, n_layers=2, max_seq_len=64)
_decoder("Starcoder2", sliding_window=4)
_decoder("StableLm")
_decoder("Cohere")
_decoder(
    "Cohere2", sliding_window=4, head_dim=8, layer_types=["sliding_attention", "full_attention"]
)
_decoder("Granite")
_decoder("GraniteMoe", num_local_experts=4, num_experts_per_tok=2)
_decoder("Glm4", head_dim=8)
_decoder("SmolLM3")
_decoder("Nemotron")
_decoder("Lfm2", layer_types=["conv", "full_attention"], block_multiple_of=16)
_decoder("Mamba", *_RECURRENT, state_size=8)
_decoder("FalconMamba", *_RECURRENT, state_size=8)
_decoder("Mamba2", *_RECURRENT, state_size=8, num_heads=8, head_dim=8, n_groups=2, chunk_size=4)
_decoder(
    "Rwkv",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    attention_hidden_size=32,
)
_decoder(
    "RecurrentGemma",
    "max_position_embeddings",
    lru_width=32,
    attention_window_size=8,
    block_types=["recurrent", "attention"],
)
_decoder(
    "Jamba",
    num_experts=4,
    num_experts_per_tok=2,
    attn_layer_period=2,
    attn_layer_offset=1,
    expert_layer_period=2,
    expert_layer_offset=1,
    mamba_d_state=8,
    use_mamba_kernels=False,
)
_decoder(
    "Bamba",
    attn_layer_indices=[1],
    mamba_n_heads=8,
    mamba_d_head=8,
    mamba_d_state=8,
    mamba_chunk_size=4,
    mamba_n_groups=2,
)

_encoder("Bert")
_encoder("Roberta")
_encoder("XLMRoberta")
_encoder(
    "DistilBert",
    *_TEXT,
    vocab_size=VOCABULARY,
    dim=32,
    hidden_dim=64,
    n_layers=2,
    n_heads=4,
    max_position_embeddings=64,
)
_encoder(
    "DebertaV2",
    relative_attention=True,
    pos_att_type=["p2c", "c2p"],
    position_biased_input=False,
    max_relative_positions=16,
)
_encoder("Electra", embedding_size=16)
_encoder("Albert", embedding_size=16)
_encoder("MPNet")
_encoder(
    "ModernBert", cls_token_id=1, sep_token_id=2, local_attention=4, global_attn_every_n_layers=2
)
_encoder("Longformer", attention_window=4, sep_token_id=2)
_encoder("FNet", "num_attention_heads")
_encoder(
    "XLNet",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_size",
    "max_position_embeddings",
    suffix="LMHeadModel",
    d_model=32,
    n_layer=2,
    n_head=4,
    d_inner=64,
)

_ENCODER_DECODER = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


def _translation(_) -> dict:
    return {"input_ids": ids(), "labels": ids(length=6)}


for _name, _given in {
    "T5": {"feed_forward_proj": "relu"},
    "MT5": {"feed_forward_proj": "gated-gelu"},
    "SwitchTransformers": {"num_experts": 4, "expert_capacity": 8},
}.items():
    _transformer(
        _name,
        "ForConditionalGeneration",
        _translation,
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        **_given,
    )
for _name in ("Bart", "Pegasus", "M2M100"):
    _transformer(
        _name,
        "ForConditionalGeneration",
        _translation,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        decoder_start_token_id=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **_ENCODER_DECODER,
    )

# Sound
_transformer(
    "Whisper",
    "ForConditionalGeneration",
    lambda _: {"input_features": torch.randn(BATCH, 16, 40), "labels": ids(length=6)},
    vocab_size=VOCABULARY,
    num_mel_bins=16,
    max_source_positions=20,
    max_target_positions=32,
    decoder_start_token_id=1,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    **_ENCODER_DECODER,
)
_WAVES = {k: v for k, v in _TEXT.items() if k != "max_position_embeddings"} | {
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
    "ctc_zero_infinity": True,
}
for _name in ("Wav2Vec2", "Hubert", "WavLM"):
    _transformer(
        _name,
        "ForCTC",
        lambda _: {"input_values": torch.randn(BATCH, 800), "labels": ids(length=6)},
        **_WAVES,
    )
_transformer(
    "AST",
    "ForAudioClassification",
    lambda _: {"input_values": torch.randn(BATCH, 40, 16), "labels": classes()},
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_length=40,
    num_mel_bins=16,
    patch_size=8,
    frequency_stride=4,
    time_stride=4,
)

# Pictures
_picture("ViT")
_picture("DeiT")
_picture("Beit")
_picture("Dinov2", "intermediate_size", mlp_ratio=2)
_picture("Dinov2WithRegisters", "intermediate_size", mlp_ratio=2)
_picture(
    "Swin",
    *_STAGES,
    "patch_size",
    patch_size=4,
    embed_dim=16,
    depths=(2, 2),
    num_heads=(2, 4),
    window_size=4,
)
_picture(
    "Swinv2",
    *_STAGES,
    "patch_size",
    patch_size=4,
    embed_dim=16,
    depths=(2, 2),
    num_heads=(2, 4),
    window_size=4,
)
_picture(
    "ConvNext",
    *_STAGES,
    "patch_size",
    patch_size=4,
    hidden_sizes=(8, 16, 16, 32),
    depths=(1, 1, 1, 1),
)
_picture(
    "ResNet",
    *_STAGES,
    "patch_size",
    "image_size",
    embedding_size=8,
    hidden_sizes=(8, 16),
    depths=(1, 1),
    layer_type="basic",
)
_picture("MobileNetV2", *_STAGES, "patch_size", depth_multiplier=0.25, min_depth=8)
_picture(
    "EfficientNet",
    *_STAGES,
    "patch_size",
    width_coefficient=0.25,
    depth_coefficient=0.25,
    hidden_dim=320,
)
_transformer(
    "ViTMAE",
    "ForPreTraining",
    lambda _: {"pixel_values": image(), "noise": torch.rand(BATCH, 16)},
    decoder_hidden_size=32,
    decoder_num_hidden_layers=1,
    decoder_num_attention_heads=4,
    decoder_intermediate_size=64,
    **_VISION,
)
_transformer(
    "Segformer",
    "ForSemanticSegmentation",
    lambda _: {"pixel_values": image(64), "labels": classes(2, BATCH, 64, 64)},
    hidden_sizes=(8, 16, 16, 32),
    depths=(1, 1, 1, 1),
    num_attention_heads=(1, 2, 2, 4),
    decoder_hidden_size=16,
)


def _boxes(_) -> dict:
    """Two things to find in the first picture, one in the second."""
    labels = [
        {"class_labels": classes(2, n), "boxes": 0.25 + 0.25 * torch.rand(n, 4)} for n in (2, 1)
    ]
    return {"pixel_values": image(64), "labels": labels}


def _detector(name: str, **given) -> None:
    def make():
        backbone = _find("transformers.ResNetConfig")(
            embedding_size=8,
            hidden_sizes=[8, 16],
            depths=[1, 1],
            layer_type="basic",
            out_features=["stage2"],
        )
        settings = _find(f"transformers.{name}Config")(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=backbone,
            num_queries=6,
            **_ENCODER_DECODER,
            **given,
        )
        return _find(f"transformers.{name}ForObjectDetection")(settings)

    _add(name, f"transformers.{name}ForObjectDetection", make, _boxes)


_detector("Detr")
_detector("ConditionalDetr")
_transformer(
    "Yolos",
    "ForObjectDetection",
    _boxes,
    **{**_VISION, "image_size": [64, 64]},
    num_detection_tokens=6,
)
_transformer(
    "DPT",
    "ForDepthEstimation",
    lambda _: {"pixel_values": image()},
    is_hybrid=False,
    backbone_out_indices=[0, 1, 2, 3],
    neck_hidden_sizes=[8, 8, 16, 16],
    fusion_hidden_size=16,
    **{**_VISION, "num_hidden_layers": 4},
)

# Pictures and words
_TOWERS = {
    "text_config": {**_TEXT, "projection_dim": 16},
    "vision_config": {**_VISION, "projection_dim": 16},
}


def _pairs(_) -> dict:
    tokens = ids()
    tokens[:, -1] = 2  # where the text ends
    return {"input_ids": tokens, "pixel_values": image(), "return_loss": True}


_transformer("CLIP", "Model", _pairs, projection_dim=16, **_TOWERS)
_transformer("Siglip", "Model", _pairs, **_TOWERS)
_transformer("ChineseCLIP", "Model", _pairs, projection_dim=16, **_TOWERS)


def _seen(placeholder: int, count: int) -> torch.Tensor:
    """Text with the places of a picture's pieces in it."""
    tokens = ids(low=10)
    return torch.cat([tokens[:, :3], torch.full((BATCH, count), placeholder), tokens[:, 3:]], 1)


def _llava(_) -> dict:
    tokens = _seen(4, 16)
    return {"input_ids": tokens, "pixel_values": image(), "labels": tokens}


_transformer(
    "Llava",
    "ForConditionalGeneration",
    _llava,
    image_token_index=4,
    text_config={"model_type": "llama", **_DECODER},
    vision_config={"model_type": "clip_vision_model", "projection_dim": 16, **_VISION},
)
_transformer(
    "PaliGemma",
    "ForConditionalGeneration",
    lambda m: _llava(m) | {"token_type_ids": torch.ones(BATCH, LENGTH + 16, dtype=torch.long)},
    image_token_index=4,
    projection_dim=32,
    text_config={"model_type": "gemma", "head_dim": 8, **_DECODER},
    vision_config={"model_type": "siglip_vision_model", **_VISION},
)


def _qwen_vl(_) -> dict:
    """Two pictures of 4 by 4 patches, of which four at a time are one token."""
    tokens = ids(low=10)
    before = torch.full((BATCH, 1), 5)
    tokens = torch.cat([tokens[:, :3], before, torch.full((BATCH, 4), 4), tokens[:, 3:]], 1)
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": torch.randn(BATCH * 16, 3 * 2 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * BATCH),
        "mm_token_type_ids": (tokens == 4).long(),
        "labels": tokens,
    }


_QWEN_VL = {
    "image_token_id": 4,
    "video_token_id": 7,
    "vision_start_token_id": 5,
    "vision_end_token_id": 6,
    "text_config": {
        **_DECODER,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
    },
}
_transformer(
    "Qwen2VL",
    "ForConditionalGeneration",
    _qwen_vl,
    vision_config={
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 32,
        "num_heads": 4,
        "mlp_ratio": 2,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
    **_QWEN_VL,
)
_transformer(
    "Qwen2_5_VL",
    "ForConditionalGeneration",
    _qwen_vl,
    vision_config={
        "depth": 2,
        "hidden_size": 32,
        "out_hidden_size": 32,
        "num_heads": 4,
        "intermediate_size": 64,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    },
    **_QWEN_VL,
)

# Series
_transformer(
    "PatchTST",
    "ForPrediction",
    lambda _: {"past_values": torch.randn(BATCH, 32, 3), "future_values": torch.randn(BATCH, 8, 3)},
    num_input_channels=3,
    context_length=32,
    prediction_length=8,
    patch_length=8,
    patch_stride=8,
    d_model=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    ffn_dim=64,
    loss="mse",
)


# ---- diffusers ----


def _diffuser(name, inputs, **given) -> None:
    _add(name, f"diffusers.{name}", lambda: _find(f"diffusers.{name}")(**given), inputs)


def _times() -> torch.Tensor:
    return torch.tensor([3, 11])


_diffuser(
    "UNet2DConditionModel",
    lambda _: {
        "sample": image(8, 4),
        "timestep": _times(),
        "encoder_hidden_states": torch.randn(BATCH, 7, 16),
    },
    sample_size=8,
    layers_per_block=1,
    block_out_channels=(16, 32),
    norm_num_groups=8,
    cross_attention_dim=16,
    attention_head_dim=4,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
)


def _latents(_) -> dict:
    return {"sample": image(16), "sample_posterior": False}


def _image_transformer(_) -> dict:
    return {
        "hidden_states": image(8, 4),
        "timestep": _times(),
        "encoder_hidden_states": torch.randn(BATCH, 7, 16),
    }


_diffuser(
    "UNet2DModel",
    lambda _: {"sample": image(16), "timestep": _times()},
    sample_size=16,
    layers_per_block=1,
    block_out_channels=(16, 32),
    norm_num_groups=8,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=8,
)
_diffuser(
    "AutoencoderKL",
    _latents,
    block_out_channels=(16, 32),
    norm_num_groups=8,
    latent_channels=4,
    down_block_types=("DownEncoderBlock2D",) * 2,
    up_block_types=("UpDecoderBlock2D",) * 2,
)
_diffuser(
    "VQModel",
    lambda _: {"sample": image(16)},
    block_out_channels=(16, 32),
    norm_num_groups=8,
    num_vq_embeddings=16,
    down_block_types=("DownEncoderBlock2D",) * 2,
    up_block_types=("UpDecoderBlock2D",) * 2,
)
_diffuser(
    "AutoencoderTiny",
    lambda _: {"sample": image(16)},
    encoder_block_out_channels=(8, 8),
    decoder_block_out_channels=(8, 8),
    num_encoder_blocks=(1, 1),
    num_decoder_blocks=(1, 1),
)
_diffuser(
    "FluxTransformer2DModel",
    lambda _: {
        "hidden_states": torch.randn(BATCH, 16, 4),
        "encoder_hidden_states": torch.randn(BATCH, 7, 16),
        "pooled_projections": torch.randn(BATCH, 16),
        "timestep": torch.tensor([0.3, 0.8]),
        "guidance": torch.tensor([3.0, 4.0]),
        "img_ids": torch.randint(0, 4, (16, 3)).float(),
        "txt_ids": torch.zeros(7, 3),
    },
    patch_size=1,
    in_channels=4,
    num_layers=1,
    num_single_layers=1,
    attention_head_dim=16,
    num_attention_heads=2,
    joint_attention_dim=16,
    pooled_projection_dim=16,
    guidance_embeds=True,
    axes_dims_rope=(4, 4, 8),
)
_diffuser(
    "SD3Transformer2DModel",
    lambda m: _image_transformer(m) | {"pooled_projections": torch.randn(BATCH, 16)},
    sample_size=8,
    patch_size=2,
    in_channels=4,
    num_layers=2,
    attention_head_dim=8,
    num_attention_heads=4,
    joint_attention_dim=16,
    caption_projection_dim=32,
    pooled_projection_dim=16,
    out_channels=4,
    pos_embed_max_size=8,
)
_diffuser(
    "DiTTransformer2DModel",
    lambda _: {"hidden_states": image(8, 4), "timestep": _times(), "class_labels": classes(10)},
    sample_size=8,
    patch_size=2,
    in_channels=4,
    out_channels=8,
    num_layers=2,
    attention_head_dim=8,
    num_attention_heads=4,
    num_embeds_ada_norm=10,
)
_diffuser(
    "PixArtTransformer2DModel",
    lambda m: (
        _image_transformer(m) | {"added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}
    ),
    sample_size=8,
    patch_size=2,
    in_channels=4,
    out_channels=8,
    num_layers=2,
    attention_head_dim=8,
    num_attention_heads=4,
    cross_attention_dim=32,
    caption_channels=16,
    use_additional_conditions=False,
)
_diffuser(
    "SanaTransformer2DModel",
    _image_transformer,
    sample_size=8,
    in_channels=4,
    out_channels=4,
    num_layers=1,
    attention_head_dim=8,
    num_attention_heads=4,
    num_cross_attention_heads=4,
    cross_attention_head_dim=8,
    cross_attention_dim=32,
    caption_channels=16,
)
_diffuser(
    "WanTransformer3DModel",
    lambda _: {
        "hidden_states": torch.randn(BATCH, 4, 2, 8, 8),
        "timestep": _times(),
        "encoder_hidden_states": torch.randn(BATCH, 7, 16),
    },
    patch_size=(1, 2, 2),
    num_attention_heads=2,
    attention_head_dim=12,
    in_channels=4,
    out_channels=4,
    text_dim=16,
    freq_dim=16,
    ffn_dim=32,
    num_layers=2,
    cross_attn_norm=True,
    rope_max_seq_len=32,
)
