# SPDX-License-Identifier: Apache-2.0 - ahead-of-time compilation: no memory, no values, and numbers that can be counted by hand.
import json
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_tpu import _C, _hlo, aot, command

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


def like(*sizes, dtype=torch.float32):
    return torch.empty(sizes, dtype=dtype, device="meta")


def half(*sizes):
    return like(*sizes, dtype=torch.bfloat16)


def gradients(x, w):
    """Of a linear layer with a sum behind it, by both arguments."""
    gy = torch.ones_like(x[:, :1]).expand(-1, w.shape[0]).contiguous()
    return gy @ w, gy.t() @ x


K = 1024
# function, arguments, flops (one an operation on an element, two a product with its sum), bytes that
# must come from memory or go there.
COUNTED = {
    "add": (torch.add, (like(K, K), like(K, K)), K * K, 12 * K * K),
    "four in one": (lambda x, y: (x + y) * x - y, (like(K, K), like(K, K)), 3 * K * K, 12 * K * K),
    "relu": (torch.relu, (like(K, K),), K * K, 8 * K * K),
    "row plus matrix": (torch.add, (like(K, K), like(K)), K * K, 8 * K * K + 4 * K),
    "outer": (torch.outer, (like(K), like(K)), K * K, 4 * K * K + 8 * K),
    "transpose": (lambda x: x.t().contiguous(), (like(K, 512),), 0, 8 * K * 512),
    "repeated row": (lambda x: x.expand(K, K).contiguous(), (like(1, K),), 0, 4 * K * K + 4 * K),
    "part": (lambda x: x[256:512] * 2, (like(4 * K, K),), 256 * K, 8 * 256 * K),
    "in place": (
        lambda x, y: x.sub_(y, alpha=0.1),
        (like(K, K), like(K, K)),
        2 * K * K,
        12 * K * K,
    ),
    "sum": (torch.sum, (like(K, K),), K * K, 4 * K * K),
    "sums of rows": (lambda x: x.sum(-1), (like(K, K),), K * K, 4 * K * K + 4 * K),
    "largest of columns": (lambda x: x.amax(0), (like(K, K),), K * K, 4 * K * K + 4 * K),
    "matmul, bfloat16": (
        torch.matmul,
        (half(512, K), half(K, 256)),
        2 * 512 * K * 256,
        2 * (512 * K + K * 256 + 512 * 256),
    ),
    "matmul, float32": (
        torch.matmul,
        (like(512, K), like(K, 256)),
        2 * 512 * K * 256,
        4 * (512 * K + K * 256 + 512 * 256),
    ),
    "matmul by batch": (
        torch.bmm,
        (half(8, 256, 128), half(8, 128, 256)),
        2 * 8 * 256 * 128 * 256,
        2 * 8 * (2 * 256 * 128 + 256 * 256),
    ),
    "linear": (
        F.linear,
        (half(512, K), half(256, K), half(256)),
        2 * 512 * K * 256 + 512 * 256,
        2 * (512 * K + 256 * K + 512 * 256 + 256),
    ),
    "two layers": (
        lambda x, u, d: F.linear(torch.relu(F.linear(x, u)), d),
        (half(256, 512), half(K, 512), half(512, K)),
        4 * 256 * 512 * K + 256 * K,
        2 * (2 * 256 * 512 + 2 * K * 512),
    ),
    "gradients": (
        gradients,
        (half(512, K), half(K, K)),
        4 * 512 * K * K,
        2 * (2 * 512 * K + 2 * K * K),
    ),
    # Of 16 x 16 pixels under 3 x 3 taps with padding, (3 * 16 - 2) ** 2 pairs lie inside.
    "convolution": (
        lambda x, w: F.conv2d(x, w, padding=1),
        (half(8, 128, 16, 16), half(128, 128, 3, 3)),
        2 * 8 * 128 * 128 * 46**2,
        2 * (2 * 8 * 128 * 256 + 128 * 128 * 9),
    ),
    # Besides the two products, a softmax of about 5 operations an element.
    "attention": (
        F.scaled_dot_product_attention,
        (half(1, 8, 256, 128), half(1, 8, 256, 128), half(1, 8, 256, 128)),
        4 * 8 * 256 * 256 * 128 + 5 * 8 * 256 * 256,
        2 * 4 * 8 * 256 * 128,
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_flops_and_bytes_are_those_counted_by_hand(name):
    function, inputs, flops, size = COUNTED[name]
    report = aot.compile(function, inputs, topology="v6e:1x1x1")
    assert report.flops == pytest.approx(flops, rel=0.02)
    assert report.traffic == pytest.approx(size, rel=0.02)


def test_every_turn_of_a_loop_counts():
    text = """module {
  func.func public @main(%w: S, %x: M) -> M {
    %zero = stablehlo.constant dense<0> : I
    %one = stablehlo.constant dense<1> : I
    %six = stablehlo.constant dense<6> : I
    %r:2 = stablehlo.while(%i = %zero, %a = %x) : I, M
     cond {
      %c = stablehlo.compare LT, %i, %six : (I, I) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %s = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 512, 512] : (S, I, I, I) -> R
      %m = stablehlo.reshape %s : (R) -> M
      %d = stablehlo.dot_general %a, %m, contracting_dims = [1] x [0] : (M, M) -> M
      %j = stablehlo.add %i, %one : I
      stablehlo.return %j, %d : I, M
    }
    return %r#1 : M
  }
}"""
    shapes = {"M": "512x512xf32", "S": "6x512x512xf32", "R": "1x512x512xf32", "I": "i32"}
    for letter, shape in shapes.items():
        text = re.sub(rf"\b{letter}\b", f"tensor<{shape}>", text)
    made = _C._inspect_for_topology(text, "v6e:1x1x1", True)
    module = _hlo.parse(made["optimized"], made["optimized_format"] == "hlo_with_config")
    flops, _ = module.cost()
    assert flops == pytest.approx(6 * 2 * 512**3, rel=0.02)
    assert module.repeated_flops() == pytest.approx(5 * 2 * 512**3, rel=0.02)


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
