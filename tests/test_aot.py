# SPDX-License-Identifier: Apache-2.0 - ahead-of-time compilation: no memory, no values, and numbers that can be counted by hand.
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_tpu import aot, command

DEVICE = "tpu"
pytest.importorskip("libtpu", reason="compiling for a TPU needs libtpu")


def test_abstract_tensors_take_no_memory_and_have_no_values():
    before = torch.tpu.memory_allocated()
    with aot.abstract():
        x = torch.randn(1 << 20, 1 << 10, device=DEVICE)  # 4 GiB
        y = (x @ x.t()[:, :3]).relu_()
        assert y.shape == (1 << 20, 3)
        assert torch.tpu.memory_allocated() == before
        with pytest.raises(RuntimeError, match="only a shape and a dtype"):
            y.sum().item()
        with pytest.raises(RuntimeError, match="only a shape and a dtype"):
            y.cpu()
    with pytest.raises(RuntimeError, match="has no values"):
        (y + 1).cpu()
    assert (torch.ones(3, device=DEVICE) + 1).tolist() == [2, 2, 2]


def test_a_training_step_is_weighed():
    with aot.abstract():
        model = nn.Linear(256, 512, bias=False).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        inputs = (torch.empty(128, 256, device="meta"), torch.empty(128, 512))
        report = aot.compile(step, inputs, topology="v6e:1x1x1")
    weights = 256 * 512 * 4
    assert report.memory["parameters"] == weights
    assert weights * 2 <= report.memory["optimizer state"] <= weights * 2 + 8
    assert report.memory["gradients"] == weights
    assert report.memory["inputs"] == 128 * (256 + 512) * 4
    # Forward, and the gradient of the weight; that of the input is not asked for.
    products = 2 * 2 * 128 * 256 * 512
    assert report.model_flops == products
    assert products <= report.flops <= 1.1 * products
    assert report.fits and 16 << 30 < report.limit <= 32 << 30
    assert report.executable and "stablehlo.dot_general" in report.stablehlo
    assert any("aten::mm" in b.origin or "test_aot.py" in b.origin for b in report.largest)
    assert json.loads(report.json())["total"] == report.total
    assert "fits" in str(report)


def test_values_outlive_a_compilation(tmp_path):
    p = nn.Parameter(torch.ones(4, 8, device=DEVICE))
    optimizer = torch.optim.SGD([p], lr=0.5)

    def step(x):
        (x @ p).sum().backward()
        optimizer.step()
        return p.detach().sum()

    report = aot.compile(step, (torch.ones(2, 4),), topology="v5e:1x1x1", warm_up=0)
    assert report.memory["parameters"] == 4 * 8 * 4
    assert p.tolist() == [[1.0] * 8] * 4
    report.html(tmp_path / "page.html")
    assert "v5e:1x1x1" in (tmp_path / "page.html").read_text()


def test_what_does_not_fit_is_said():
    with aot.abstract():
        w = torch.empty(1 << 16, 1 << 16, device=DEVICE)
        report = aot.compile(lambda x: x * 2 + 1, (w,), topology="v5e:1x1x1")
    assert not report.fits
    assert "does NOT fit" in str(report)


def test_errors():
    with pytest.raises(ValueError, match="does nothing on device"):
        aot.compile(lambda: 1)
    with pytest.raises(RuntimeError, match="only a shape and a dtype"):
        aot.compile(lambda x: x * x.sum().item(), (torch.ones(3),))
    with pytest.raises(RuntimeError, match="v99"):
        aot.compile(lambda x: x + 1, (torch.ones(3),), topology="v99:1x1")
    assert (torch.ones(3, device=DEVICE) + 1).tolist() == [2, 2, 2]


def test_the_command(tmp_path, capsys):
    script = tmp_path / "work.py"
    script.write_text("import torch\ndef build():\n    return torch.nn.ReLU(), (torch.ones(8),)\n")
    there = str(tmp_path / "out")
    assert (
        command.main(["aot", str(script), "--topology", "v4:2x2x1,tpu7x:1x1x1", "--json", there])
        == 0
    )
    assert "tpu7x:1x1x1: fits" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "work-v4-2x2x1.json").read_text())["chip"] == "TPU v4"
    assert command.main(["aot", str(script), "--topology", "v99:1"]) == 1
    script.write_text("x = 1\n")
    with pytest.raises(ValueError, match="defines no build"):
        command.main(["aot", str(script)])
