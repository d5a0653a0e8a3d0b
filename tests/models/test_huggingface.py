# SPDX-License-Identifier: Apache-2.0 - unmodified transformers and diffusers models on the device, against CPU.
"""Tiny models with random weights, made from configs: nothing is downloaded.

DEV=cpu runs the tests on the CPU, which checks the tests themselves.
"""

import os

import pytest
import torch

from torch_tpu.conformance.tolerances import allowed

transformers = pytest.importorskip(
    "transformers", reason="needs transformers (pip install transformers)"
)
diffusers = pytest.importorskip("diffusers", reason="needs diffusers (pip install diffusers)")

DEV = os.environ.get("DEV", "tpu")
SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": None,  # random weights could end early, and then little would be compared
    "pad_token_id": 0,
}


@pytest.fixture(autouse=True)
def quiet():
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A checkpoint folder; weights large enough that the next token is never a tie."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("llama")
    config = transformers.LlamaConfig(**SMALL, initializer_range=0.3, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def load(folder, device):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, device_map=device
    ).eval()


def test_device_map_places_everything_and_keeps_tied_weights(llama):
    model = load(llama, DEV)
    assert {p.device.type for p in model.parameters()} == {DEV}
    assert {b.device.type for b in model.buffers()} == {DEV}
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    reference = load(llama, "cpu")
    for (name, ours), (_, theirs) in zip(
        model.state_dict().items(), reference.state_dict().items(), strict=True
    ):
        assert torch.equal(ours.cpu(), theirs), name


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="dynamic cache"),
        pytest.param({"cache_implementation": "static", "disable_compile": True}, id="static"),
        # As it comes: transformers compiles the decode step with backend="tpu" (dynamic=False).
        pytest.param({"cache_implementation": "static"}, id="static, compiled by transformers"),
    ],
)
def test_greedy_generate_equals_cpu(llama, options):
    # Two rows of different length, padded on the left, as a batch of prompts comes.
    ids = torch.tensor([[0, 0, 5, 17, 3, 88], [9, 4, 61, 7, 30, 2]])
    mask = (ids != 0).long()
    answers = []
    for device, extra in ((DEV, options), ("cpu", {})):
        out = load(llama, device).generate(
            ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=12,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            **extra,
        )
        assert out.sequences.device.type == device
        answers.append((out.sequences.cpu(), torch.stack(out.logits).cpu()))
    (ours, our_logits), (theirs, their_logits) = answers
    assert torch.equal(ours, theirs)
    torch.testing.assert_close(our_logits, their_logits, **allowed("sums"))


def test_sampling_is_repeatable_and_in_the_vocabulary(llama):
    model, ids = load(llama, DEV), torch.tensor([[5, 17, 3]], device=DEV)

    def sample(seed):
        torch.manual_seed(seed)
        return model.generate(ids, max_new_tokens=10, do_sample=True, top_k=20, top_p=0.9).cpu()

    first = sample(1)
    assert torch.equal(first, sample(1))
    assert any(not torch.equal(first, sample(seed)) for seed in (2, 3, 4))
    assert first.min() >= 0 and first.max() < SMALL["vocab_size"]


def test_save_on_the_device_load_on_cpu(llama, tmp_path):
    model = load(llama, DEV)
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    model.save_pretrained(tmp_path)
    again = load(tmp_path, "cpu")
    assert torch.equal(again.model.norm.weight, model.model.norm.weight.cpu())
    assert again.lm_head.weight.data_ptr() == again.model.embed_tokens.weight.data_ptr()


def gradients_close(make, ids):
    """Loss and every gradient of a language model, on the device and on CPU."""
    reference = make()
    model = make()
    model.load_state_dict(reference.state_dict())
    model.to(DEV)
    losses = []
    for m, device in ((model, DEV), (reference, "cpu")):
        loss = m(input_ids=ids.to(device), labels=ids.to(device)).loss
        loss.backward()
        losses.append(loss.detach().cpu())
    torch.testing.assert_close(*losses, **allowed("layers"))
    for (name, ours), (_, theirs) in zip(
        model.named_parameters(), reference.named_parameters(), strict=True
    ):
        torch.testing.assert_close(
            ours.grad.cpu(), theirs.grad, **allowed("training"), msg=lambda m, n=name: f"{n}: {m}"
        )


def test_llama_gradients():
    config = transformers.LlamaConfig(**SMALL)
    gradients_close(lambda: transformers.LlamaForCausalLM(config), torch.randint(1, 96, (2, 10)))


def test_mixture_of_experts_gradients():
    """transformers takes grouped_mm for granted on "tpu", in every dtype."""
    config = transformers.MixtralConfig(
        **SMALL, num_local_experts=4, num_experts_per_tok=2, sliding_window=None
    )
    gradients_close(lambda: transformers.MixtralForCausalLM(config), torch.randint(1, 96, (2, 10)))


def test_complex_rotary_gradients():
    """Rotary embeddings through view_as_complex and polar."""
    config = transformers.Llama4TextConfig(
        **SMALL,
        head_dim=8,
        intermediate_size_mlp=64,
        num_local_experts=2,
        num_experts_per_tok=1,
        interleave_moe_layer_step=2,
    )
    gradients_close(lambda: transformers.Llama4ForCausalLM(config), torch.randint(1, 96, (2, 10)))


def test_encoder_with_padding():
    config = transformers.BertConfig(
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    model = transformers.BertModel(config).eval()
    ids = torch.tensor([[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]])
    with torch.no_grad():
        theirs = model(ids, attention_mask=(ids != 0).long())
        model.to(DEV)
        ours = model(ids.to(DEV), attention_mask=(ids != 0).long().to(DEV))
    torch.testing.assert_close(
        ours.last_hidden_state.cpu(), theirs.last_hidden_state, **allowed("layers")
    )
    torch.testing.assert_close(ours.pooler_output.cpu(), theirs.pooler_output, **allowed("layers"))


def test_trainer_bf16(llama, tmp_path, monkeypatch):
    """A few steps of Trainer with bf16 autocast, gradient clipping, a checkpoint and evaluation."""
    from accelerate.state import AcceleratorState

    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", DEV)
    AcceleratorState._reset_state(reset_partial_state=True)  # it remembers the first device
    rows = torch.randint(1, 96, (32, 12))
    data = [{"input_ids": row, "labels": row} for row in rows]
    arguments = transformers.TrainingArguments(
        output_dir=tmp_path,
        bf16=True,
        use_cpu=DEV == "cpu",
        max_steps=8,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        logging_steps=1,
        save_steps=8,
        report_to=[],
        disable_tqdm=True,
        seed=0,
    )
    assert arguments.device.type == DEV
    config = transformers.LlamaConfig(**SMALL, tie_word_embeddings=True)
    trainer = transformers.Trainer(
        model=transformers.LlamaForCausalLM(config),
        args=arguments,
        train_dataset=data,
        eval_dataset=data,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert {p.device.type for p in trainer.model.parameters()} == {DEV}
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert len(norms) == 8 and all(0 < norm < 100 for norm in norms)
    after = trainer.evaluate()["eval_loss"]
    assert after < before - 0.1
    again = load(tmp_path / "checkpoint-8", "cpu")
    assert torch.equal(again.model.norm.weight, trainer.model.model.norm.weight.cpu())
    AcceleratorState._reset_state(reset_partial_state=True)


def unet(**extra):
    return diffusers.UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        **extra,
    ).eval()


def test_ddpm_pipeline():
    """An unconditional pipeline; the noise comes from a CPU generator, so the images are equal."""
    pipeline = diffusers.DDPMPipeline(unet(), diffusers.DDPMScheduler(num_train_timesteps=50))
    pipeline.set_progress_bar_config(disable=True)
    images = []
    for device in ("cpu", DEV):
        pipeline.to(device)
        generator = torch.Generator().manual_seed(3)
        out = pipeline(batch_size=2, num_inference_steps=4, generator=generator, output_type="np")
        images.append(torch.from_numpy(out.images))
    assert pipeline.unet.device.type == DEV
    torch.testing.assert_close(images[1], images[0], **allowed("training"))


def test_latent_diffusion_pipeline():
    """Text-conditioned UNet with guidance, scheduler and VAE decoder; the prompt comes as embeddings."""
    pipeline = diffusers.StableDiffusionPipeline(
        unet=diffusers.UNet2DConditionModel(
            sample_size=8,
            layers_per_block=1,
            block_out_channels=(16, 32),
            norm_num_groups=8,
            cross_attention_dim=16,
            attention_head_dim=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        ).eval(),
        vae=diffusers.AutoencoderKL(
            block_out_channels=(16, 32),
            norm_num_groups=8,
            latent_channels=4,
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
        ).eval(),
        scheduler=diffusers.DDIMScheduler(clip_sample=False, steps_offset=1),
        text_encoder=None,
        tokenizer=None,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    prompt, nothing = torch.randn(1, 7, 16), torch.zeros(1, 7, 16)
    images = []
    for device in ("cpu", DEV):
        pipeline.to(device)
        out = pipeline(
            prompt_embeds=prompt.to(device),
            negative_prompt_embeds=nothing.to(device),
            guidance_scale=3.0,
            num_inference_steps=3,
            generator=torch.Generator().manual_seed(3),
            output_type="np",
        )
        images.append(torch.from_numpy(out.images))
    torch.testing.assert_close(images[1], images[0], **allowed("training"))


def test_unet_channels_last_gradients():
    """Group norm, attention and convolutions in channels-last, forward and backward."""
    model = unet()
    noise = torch.randn(2, 3, 16, 16)
    steps = torch.tensor([3, 11])
    results = []
    for device in ("cpu", DEV):
        model.to(device, memory_format=torch.channels_last)
        model.zero_grad()
        x = noise.to(device).to(memory_format=torch.channels_last)
        out = model(x, steps.to(device)).sample
        out.square().mean().backward()
        results.append(
            {"out": out.detach().cpu()}
            # A copy: moving the model moves the gradients it holds, wherever else they are held.
            | {n: p.grad.cpu().clone() for n, p in model.named_parameters()}
        )
    for name, theirs in results[0].items():
        torch.testing.assert_close(
            results[1][name], theirs, **allowed("training"), msg=lambda m, n=name: f"{n}: {m}"
        )
