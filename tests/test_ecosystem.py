# SPDX-License-Identifier: Apache-2.0 - loaders, accelerate and file formats around the device.
"""What training scripts use beside PyTorch itself. DEV=cpu checks the tests themselves."""

import os

import pytest
import torch
from fresh_process import python
from torch.utils.data import DataLoader, Dataset

DEV = os.environ.get("DEV", "tpu")


class Squares(Dataset):
    """Computes in the worker process, so that a worker that hangs or returns rubbish is seen."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return torch.full((3,), float(index)).square(), index


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("pinned", [False, True])
def test_loader_workers_after_the_device_was_used(start, pinned):
    assert torch.ones(2, device=DEV).sum().item() == 2  # awake before the workers start
    loader = DataLoader(
        Squares(),
        batch_size=5,
        num_workers=2,
        pin_memory=pinned,
        persistent_workers=True,
        multiprocessing_context=start,
        timeout=60,
    )
    for _ in range(2):
        seen = {}
        for values, indices in loader:
            assert values.device.type == "cpu"
            assert values.is_pinned() == pinned or DEV == "cpu"
            doubled = (values.to(DEV, non_blocking=True) * 2).cpu()
            seen |= dict(zip(indices.tolist(), doubled[:, 0].tolist(), strict=True))
        assert seen == {i: 2.0 * i * i for i in range(23)}


def test_copies_from_a_pinned_batch_do_not_read_later_contents():
    """non_blocking copies from a staging buffer that is refilled at once, as servers do."""
    staging = torch.zeros(4096)
    if DEV != "cpu":
        staging = staging.pin_memory()
    got = []
    for i in range(50):
        staging.fill_(i)
        got.append(torch.empty(1000, device=DEV).copy_(staging[i : i + 1000], non_blocking=True))
    for i, tensor in enumerate(got):
        assert tensor.min().item() == tensor.max().item() == i


@pytest.fixture
def accelerator(monkeypatch):
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    from accelerate.state import AcceleratorState

    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", DEV)
    AcceleratorState._reset_state(reset_partial_state=True)
    yield accelerate.Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    AcceleratorState._reset_state(reset_partial_state=True)


def test_accelerate_trains_on_the_device(accelerator):
    assert accelerator.device.type == DEV
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    x = torch.randn(64, 3)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(data, batch_size=16, shuffle=True)
    )
    losses = []
    for _ in range(12):
        for inputs, targets in loader:
            assert inputs.device.type == DEV
            with accelerator.accumulate(model):
                output = model(inputs)
                loss = torch.nn.functional.mse_loss(output, targets)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
    losses = torch.stack(losses).cpu()
    assert losses[-8:].mean() < losses[:8].mean() / 3
    gathered = accelerator.gather_for_metrics(torch.arange(3, device=DEV))
    assert gathered.tolist() == [0, 1, 2]


def test_safetensors_to_and_from_the_device(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors")
    tensors = {
        "float": torch.randn(4, 5),
        "half": torch.randn(3).bfloat16(),
        "long": torch.arange(6).view(2, 3),
        "bool": torch.tensor([True, False]),
        "empty": torch.empty(0, 4),
    }
    safetensors.save_file({k: v.to(DEV) for k, v in tensors.items()}, tmp_path / "x.safetensors")
    # safetensors 0.8 knows no device "tpu" by name; a number means the accelerator, as PyTorch has it.
    for where, device in ((0 if DEV == "tpu" else DEV, DEV), ("cpu", "cpu")):
        loaded = safetensors.load_file(tmp_path / "x.safetensors", device=where)
        for name, wanted in tensors.items():
            assert loaded[name].device.type == device, name
            assert torch.equal(loaded[name].cpu(), wanted), name


def test_transformers_finds_the_device_without_importing_torch_tpu():
    """A script that never names our package: PyTorch loads it by its entry point, and says nothing."""
    pytest.importorskip("transformers", reason="needs transformers")
    code = (
        "import transformers, torch;"
        f"m = transformers.BertModel(transformers.BertConfig(hidden_size=16, num_hidden_layers=1,"
        f"num_attention_heads=2, intermediate_size=16, vocab_size=9)).to({DEV!r});"
        f"print(m(torch.ones(1, 2, dtype=torch.long, device={DEV!r})).last_hidden_state.device.type)"
    )
    assert python(code) == DEV
