# SPDX-License-Identifier: Apache-2.0 - torch_tpu.export: one file that runs without the module it was made of.
import json
import zipfile

import pytest
import torch
from fresh_process import run
from torch import nn

import torch_tpu

DEVICE = "tpu"


def data(*shape):
    generator = torch.Generator().manual_seed(sum(shape) + 1)
    return torch.randn(shape, generator=generator)


class Mlp(nn.Module):
    """With tied weights, a mutated buffer, and a tree of inputs and outputs."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)
        self.down.weight = self.up.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, batch, scale=1.0, *, mask=None):
        self.calls += 1
        x = batch["x"] * scale
        if mask is not None:
            x = x * mask
        x = self.down(torch.relu(self.up(x)))
        return {"out": x, "shape": (x.shape[0], [x.sum(-1), None])}


def make(module_class):
    torch.manual_seed(0)
    return module_class()


def test_mlp_in_a_fresh_process(tmp_path):
    model, x, mask = make(Mlp), data(4, 8), torch.ones(8)
    expected = model({"x": x}, 2.0, mask=mask)
    model.calls.zero_()
    path = tmp_path / "mlp.zip"
    torch_tpu.export(model, ({"x": x}, 2.0), {"mask": mask}, path=path)
    torch.save(
        [x, mask, expected["out"].detach(), expected["shape"][1][0].detach()], tmp_path / "io"
    )
    code = f"""
import torch, torch_tpu
x, mask, out, total = torch.load({str(tmp_path / "io")!r})
program = torch_tpu.load_exported({str(path)!r})
for i in range(2):
    got = program({{"x": x.to("tpu")}}, 2.0, mask=mask.to("tpu"))
torch.testing.assert_close(got["out"].cpu(), out)
rows, (sums, nothing) = got["shape"]
assert rows == 4 and nothing is None and not got["out"].requires_grad
torch.testing.assert_close(sums.cpu(), total)
weights = program.weights
assert weights["calls"].item() == 2
assert weights["up.weight"] is weights["down.weight"]
"""
    run(code)


def test_tied_weights_are_stored_once(tmp_path):
    model = make(Mlp)
    torch_tpu.export(model, ({"x": data(4, 8)},), path=tmp_path / "a")
    with zipfile.ZipFile(tmp_path / "a") as file:
        weights = file.read("weights.safetensors")
        meta = json.loads(file.read("meta.json"))
    length = int.from_bytes(weights[:8], "little")
    assert len(json.loads(weights[8 : 8 + length])) == 4  # a weight, two biases, the count
    assert len(weights) == 8 + length + 4 * (64 + 8 + 8) + 8
    assert meta["weights"]["down.weight"] == meta["weights"]["up.weight"]


def test_wrong_arguments_are_told_in_plain_words():
    program = torch_tpu.export(make(Mlp), ({"x": data(4, 8)}, 2.0))
    x = data(4, 8).to(DEVICE)
    with pytest.raises(ValueError, match=r"'batch_x' has shape \(4, 8\), got \(5, 8\)"):
        program({"x": data(5, 8).to(DEVICE)}, 2.0)
    with pytest.raises(
        TypeError, match=r"'batch_x' is float32, got int64; .*\.to\(torch.float32\)"
    ):
        program({"x": x.long()}, 2.0)
    with pytest.raises(ValueError, match="is on cpu; move it"):
        program({"x": x.cpu()}, 2.0)
    with pytest.raises(TypeError, match="'batch_x' is a tensor, got a float"):
        program({"x": 1.0}, 2.0)
    with pytest.raises(TypeError, match=r"was 2.0 when the program was exported .* got 3.0"):
        program({"x": x}, 3.0)
    with pytest.raises(TypeError, match="takes 2 positional arguments"):
        program({"x": x})
    with pytest.raises(TypeError, match="with something else inside"):
        program({"y": x}, 2.0)
    assert program({"x": x}, 2.0)["out"].shape == (4, 8)


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.net(x).mean((2, 3)))


def test_convolutions_and_batch_norm(tmp_path):
    model, x = make(Conv), data(2, 3, 8, 8)
    model(x)  # running statistics that are not the first ones
    model.eval()
    exported = torch_tpu.export(model, (x,), path=tmp_path / "conv")
    program = torch_tpu.load_exported(tmp_path / "conv")
    torch.testing.assert_close(program(x.to(DEVICE)).cpu(), model(x))
    # Both forms are plain StableHLO: nothing in them calls this machine's libraries.
    for platform in ("cpu", "tpu"):
        assert "custom_call" not in exported.text(platform)
    assert program.inputs == [{"name": "x", "dtype": "float32", "shape": [2, 3, 8, 8]}]
    assert program.outputs == [{"dtype": "float32", "shape": [2, 5]}]


def test_training_mode_updates_the_running_statistics():
    model = make(Conv)
    x = data(2, 3, 8, 8)
    program = torch_tpu.export(model, (x,))
    out = program(x.to(DEVICE))
    torch.testing.assert_close(out.cpu(), model(x))
    torch.testing.assert_close(program.weights["net.1.running_var"].cpu(), model.net[1].running_var)


def test_a_module_on_the_device_and_random_numbers():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).to(DEVICE)
    x = data(4, 8).to(DEVICE)
    program = torch_tpu.export(model, (x,))
    torch.manual_seed(3)
    expected = model(x), model(x)
    state = torch.tpu.get_rng_state()
    torch.manual_seed(3)
    for value in expected:
        torch.testing.assert_close(program(x), value.detach())
    assert torch.equal(torch.tpu.get_rng_state(), state)


def test_functions_write_to_their_inputs_and_check_indices():
    def function(table, index, count):
        count.add_(1)
        return table[index]

    program = torch_tpu.export(
        function, (data(5, 2), torch.tensor([1, 4]), torch.zeros(2, dtype=torch.int32))
    )
    count = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    table = data(5, 2).to(DEVICE)
    got = program(table, torch.tensor([1, 4], device=DEVICE), count)
    assert torch.equal(got, table[[1, 4]]) and count.tolist() == [1, 1]
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        program(table, torch.tensor([1, 7], device=DEVICE), count).cpu()


def test_half_precision_weights(tmp_path):
    model = nn.Linear(8, 4).bfloat16()
    x = data(3, 8).bfloat16()
    torch_tpu.export(model, (x,), path=tmp_path / "half")
    program = torch_tpu.load_exported(tmp_path / "half")
    assert program.weights["weight"].dtype == torch.bfloat16
    torch.testing.assert_close(program(x.to(DEVICE)).cpu(), model(x))


def test_a_transformers_model(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.arange(8)[None]
    torch_tpu.export(model, (), {"input_ids": ids}, path=tmp_path / "llama")
    program = torch_tpu.load_exported(tmp_path / "llama")
    got = program(input_ids=ids.to(DEVICE))
    torch.testing.assert_close(got["logits"].cpu(), model(ids).logits.detach())
    assert program.weights["lm_head.weight"] is program.weights["model.embed_tokens.weight"]


def test_what_cannot_be_one_program_is_told_with_its_line():
    def sizes(x):
        return x.nonzero()

    def decision(x):
        return x + 1 if x.sum() > 0 else x

    line = sizes.__code__.co_firstlineno + 1
    with pytest.raises(
        NotImplementedError, match=rf"sizes: aten.nonzero at .*{__name__}.py:{line}"
    ):
        torch_tpu.export(sizes, (data(4),))
    line = decision.__code__.co_firstlineno + 1
    with pytest.raises(NotImplementedError, match=rf"decision: .* at .*{__name__}.py:{line}"):
        torch_tpu.export(decision, (data(4),))


def test_files_of_another_kind(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="was not made by torch_tpu"):
        torch_tpu.load_exported(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(
            "meta.json", json.dumps({"format": "torch_tpu exported program", "version": 99})
        )
    with pytest.raises(ValueError, match="install a newer one"):
        torch_tpu.load_exported(path)


def test_exporting_is_silent(recwarn, capfd):
    torch_tpu.export(make(Mlp), ({"x": data(4, 8)},))
    assert [str(w.message) for w in recwarn] == []
    assert capfd.readouterr() == ("", "")
