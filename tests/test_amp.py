# SPDX-License-Identifier: Apache-2.0 - torch.autocast("tpu") and torch.amp.GradScaler("tpu").
import threading

import pytest
import torch
import torch.nn.functional as F


def x(*shape, dtype=torch.float32):
    return torch.ones(shape, device="tpu", dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lists(dtype):
    half = x(4, 4, dtype=dtype)
    with torch.autocast("tpu", dtype=dtype):
        # In the lower precision.
        assert (x(4, 4) @ x(4, 4)).dtype == dtype
        assert F.linear(x(2, 4), x(3, 4), x(3)).dtype == dtype
        assert F.conv2d(x(1, 2, 4, 4), x(3, 2, 3, 3)).dtype == dtype
        assert (
            F.scaled_dot_product_attention(x(1, 1, 4, 8), x(1, 1, 4, 8), x(1, 1, 4, 8)).dtype
            == dtype
        )
        # In float32.
        for function in (torch.exp, torch.log, torch.softmax, torch.cumsum, torch.sum):
            arguments = (half, 0) if function in (torch.softmax, torch.cumsum) else (half,)
            assert function(*arguments).dtype == torch.float32, function
        assert F.layer_norm(half, (4,)).dtype == torch.float32
        assert F.mse_loss(half, half).dtype == torch.float32
        assert half.norm().dtype == torch.float32
        # In the widest of the inputs.
        assert torch.addcmul(x(4, 4), half, half).dtype == torch.float32
        # As they come.
        assert (half + half).dtype == dtype
        assert torch.relu(half).dtype == dtype
        assert (x(4) + 1).dtype == torch.float32
        # Not the CPU's business.
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        # Numbers that are not floats stay.
        assert (x(4, 4, dtype=torch.float64) @ x(4, 4, dtype=torch.float64)).dtype == torch.float64
        with torch.autocast("tpu", enabled=False):
            assert (x(4, 4) @ x(4, 4)).dtype == torch.float32
    assert (x(4, 4) @ x(4, 4)).dtype == torch.float32


def test_bfloat16_is_the_default():
    with torch.autocast("tpu"):
        assert (x(2, 2) @ x(2, 2)).dtype == torch.bfloat16
    assert torch.get_autocast_dtype("tpu") == torch.bfloat16


def test_threads_have_their_own_autocast():
    seen = []

    def use():
        seen.append((x(2, 2) @ x(2, 2)).dtype)
        with torch.autocast("tpu", dtype=torch.bfloat16):
            seen.append((x(2, 2) @ x(2, 2)).dtype)

    with torch.autocast("tpu", dtype=torch.float16):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert seen == [torch.float32, torch.bfloat16]


def test_what_autocast_refuses():
    with torch.autocast("tpu"), pytest.raises(RuntimeError, match="with_logits"):
        F.binary_cross_entropy(x(3) / 2, x(3))
    with (
        pytest.warns(UserWarning, match="not supported"),
        torch.autocast("tpu", dtype=torch.float64),
    ):
        assert (x(2, 2) @ x(2, 2)).dtype == torch.float32


def test_training_under_autocast_follows_the_cpu():
    torch.manual_seed(0)
    inputs, targets = torch.randn(32, 8), torch.randint(0, 4, (32,))
    losses = {}
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    start = {k: v.clone() for k, v in model.state_dict().items()}
    for device in ("cpu", "tpu"):
        model.load_state_dict(start)
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses[device] = []
        for _ in range(10):
            with torch.autocast(device, dtype=torch.bfloat16):
                output = model(inputs.to(device))
                loss = F.cross_entropy(output, targets.to(device))
            assert output.dtype == torch.bfloat16
            optimizer.zero_grad()
            loss.backward()
            assert model[0].weight.grad.dtype == torch.float32
            optimizer.step()
            losses[device].append(loss.item())
    assert losses["cpu"][-1] < losses["cpu"][0] / 1.2
    assert losses["tpu"] == pytest.approx(losses["cpu"], rel=2e-2)


def test_casts_of_weights_are_cached_within_a_region():
    weight = torch.nn.Parameter(x(4, 4))
    with torch.autocast("tpu"):
        a, b = x(2, 4) @ weight, x(2, 4) @ weight
    casts = [g.next_functions[1][0] for g in (a.grad_fn, b.grad_fn)]
    assert casts[0] is casts[1]


def test_custom_forward_and_backward():
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
        def forward(ctx, t):
            ctx.save_for_backward(t)
            assert not torch.is_autocast_enabled("tpu")
            return t * t

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")
        def backward(ctx, grad):
            return 2 * ctx.saved_tensors[0] * grad

    t = x(3, dtype=torch.bfloat16).requires_grad_()
    with torch.autocast("tpu"):
        y = Square.apply(t)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert t.grad.tolist() == [2, 2, 2]


def step(scaler, parameter, optimizer, factor):
    optimizer.zero_grad()
    scaler.scale((parameter * factor).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


def test_grad_scaler_skips_steps_that_overflow():
    scaler = torch.amp.GradScaler("tpu", init_scale=1024.0, growth_interval=2)
    parameter = torch.nn.Parameter(x(4))
    optimizer = torch.optim.SGD([parameter], lr=0.25)
    step(scaler, parameter, optimizer, 1.0)
    assert parameter.tolist() == [0.75] * 4
    assert scaler.get_scale() == 1024
    step(scaler, parameter, optimizer, float("inf"))
    assert parameter.tolist() == [0.75] * 4
    assert scaler.get_scale() == 512
    step(scaler, parameter, optimizer, 1.0)
    step(scaler, parameter, optimizer, 1.0)
    assert parameter.tolist() == [0.25] * 4
    assert scaler.get_scale() == 1024  # grown after two good steps
    again = torch.amp.GradScaler("tpu")
    again.load_state_dict(scaler.state_dict())
    assert again.get_scale() == 1024


def test_grad_scaler_unscales_for_clipping():
    scaler = torch.amp.GradScaler("tpu", init_scale=64.0)
    parameter = torch.nn.Parameter(x(4))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    scaler.scale((parameter * 3).sum()).backward()
    assert parameter.grad.tolist() == [192.0] * 4
    scaler.unscale_(optimizer)
    assert parameter.grad.tolist() == [3.0] * 4
    assert torch.nn.utils.clip_grad_norm_([parameter], 1.0).item() == 6
    scaler.step(optimizer)
    scaler.update()
    assert parameter.max().item() < 1
