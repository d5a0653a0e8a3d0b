# SPDX-License-Identifier: Apache-2.0 - what unmodified packages take for granted of a device, point by point.
"""Transformers, diffusers, accelerate, torchtitan, Ray, vLLM and others were run on a device of this
kind; each test here is something that one of them relied on. The points about collectives come
with the process group.
"""

import struct
import sys
import threading

import pytest
import torch
from fresh_process import python

from torch_tpu.conformance.tolerances import allowed

tpu = torch.tpu


# ---- registration ----


def test_the_device_is_registered_everywhere():
    assert torch._C._get_privateuse1_backend_name() == "tpu"
    assert torch.get_device_module("tpu") is sys.modules["torch.tpu"] is torch.tpu
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    for owner in (torch.Tensor, torch.nn.Module, torch.nn.utils.rnn.PackedSequence):
        assert hasattr(owner, "tpu")
    import torch.tpu as by_import

    assert by_import is torch.tpu


def test_names_of_the_module_that_callers_read():
    names = """
        is_available device_count current_device set_device synchronize is_initialized _lazy_init
        _is_in_bad_fork manual_seed manual_seed_all initial_seed seed seed_all get_rng_state
        get_rng_state_all set_rng_state set_rng_state_all Stream Event stream current_stream
        default_stream set_stream device device_of get_device_name get_device_properties
        get_device_capability memory_stats memory_summary reset_peak_memory_stats
        reset_accumulated_memory_stats empty_cache mem_get_info memory_allocated
        max_memory_allocated memory_reserved max_memory_reserved get_amp_supported_dtype
        is_bf16_supported _exchange_device _maybe_exchange_device default_generators
        can_device_access_peer ipc_collect utilization EagerMode set_eager_mode eager_mode Precision
        precision cache_stats reset_cache_stats fallback_counts init
    """
    names = names.split()
    assert [n for n in names if not hasattr(tpu, n)] == []
    assert [n for n in tpu.__all__ if not hasattr(tpu, n)] == []


@pytest.mark.parametrize("first", ["import torch_tpu", "import torch", "import torch_tpu._loader"])
def test_an_import_leaks_nothing_and_wakes_nothing(first):
    code = f"""
{first}
import os, threading, torch
assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in os.environ
assert not torch.tpu.is_initialized() and threading.active_count() == 1
assert "pjrt" not in open("/proc/self/maps").read().replace("xla_cpu_pjrt-", "")
print(torch.tpu.device_count())
"""
    assert python(code) == "1"


def test_generated_methods_move_modules_and_sequences():
    model = torch.nn.Linear(2, 2).tpu()
    assert model.weight.is_tpu
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1), torch.ones(1, 1)]).tpu()
    assert packed.data.is_tpu
    assert torch.ones(1).tpu(0).cpu().is_tpu is False


# ---- random state ----


def test_the_rng_state_is_what_dtensor_reads():
    tpu.manual_seed(123)
    torch.rand(10, device="tpu")
    state = tpu.get_rng_state()
    assert state.dtype == torch.uint8
    assert state.numel() == 16
    assert state[:8].view(torch.int64).item() == 123
    offset = state[8:].view(torch.int64).item()
    assert offset > 0
    assert offset % 4 == 0
    new = state.clone()
    new[8:] = torch.tensor([offset + 16]).view(torch.uint8)
    tpu.set_rng_state(new)
    assert struct.unpack("<Qq", bytes(tpu.get_rng_state().tolist())) == (123, offset + 16)


@pytest.mark.parametrize(
    "fill",
    [
        lambda x: x.uniform_(),
        lambda x: x.normal_(),
        lambda x: x.bernoulli_(0.5),
        lambda x: x.random_(),
        lambda x: x.exponential_(),
        lambda x: torch.nn.init.trunc_normal_(x),
        lambda x: torch.nn.functional.dropout(x),
        lambda x: torch.randperm(5, device="tpu"),
        lambda x: torch.multinomial(x, 2),
    ],
)
def test_random_fills_advance_the_state_natively(fill):
    before = tpu.get_rng_state()
    counts = tpu.fallback_counts()
    fill(torch.ones(8, device="tpu"))
    assert not torch.equal(tpu.get_rng_state(), before)
    assert tpu.fallback_counts() == counts


# ---- copies under the conjugate and negative keys ----


def test_copies_of_conjugated_and_negated_views():
    z = torch.randn(4, dtype=torch.complex64)
    d = z.tpu()
    assert torch.equal(d.conj().cpu(), z.conj())
    assert torch.equal(d.conj().imag.cpu(), z.conj().imag)
    assert torch.equal(z.conj().tpu().cpu(), z.conj().resolve_conj())
    target = torch.zeros(4, dtype=torch.complex64).conj()
    target.copy_(d)
    assert torch.equal(target, z)
    there = torch.zeros(4, dtype=torch.complex64, device="tpu").conj()
    there.copy_(z)
    assert torch.equal(there.cpu(), z)


def test_complex_rotary_embeddings():
    def rotate(device):
        q = torch.arange(16.0).view(1, 2, 2, 4).to(device)
        angles = torch.polar(torch.ones(2, 2), torch.arange(4.0).view(2, 2)).to(device)
        pairs = torch.view_as_complex(q.view(1, 2, 2, 2, 2))
        return torch.view_as_real(pairs * angles.conj()[None, :, None]).flatten(3).cpu()

    torch.testing.assert_close(rotate("tpu"), rotate("cpu"))


# ---- operators that must be registered explicitly ----


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_convolution_and_group_norm_forward_and_backward(format):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.GroupNorm(2, 8))
    x = torch.randn(2, 4, 6, 6)
    results = {}
    for device in ("cpu", "tpu"):
        m = model.to(device)
        m.zero_grad()
        xd = x.to(device).to(memory_format=format).detach().requires_grad_()
        m(xd).square().sum().backward()
        results[device] = [xd.grad.cpu(), *(p.grad.cpu().clone() for p in m.parameters())]
    for ours, theirs in zip(results["tpu"], results["cpu"], strict=True):
        torch.testing.assert_close(ours, theirs, **allowed("sums"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_grouped_mm(dtype):
    torch.manual_seed(0)
    a, b = torch.randn(16, 8).to(dtype), torch.randn(3, 8, 16).to(dtype)
    ends = torch.tensor([5, 5, 16], dtype=torch.int32)
    got = torch._grouped_mm(a.tpu(), b.tpu(), offs=ends.tpu()).cpu()
    wanted = torch.cat([a[:5].float() @ b[0].float(), a[5:].float() @ b[2].float()])
    torch.testing.assert_close(got.float(), wanted, **allowed("low precision"))


# ---- autocast, dispatch keys, custom operators ----


def test_autocast_is_there():
    assert torch.amp.is_autocast_available("tpu")
    with torch.autocast("tpu"):
        assert torch.is_autocast_enabled("tpu")
        y = torch.ones(2, 2, device="tpu") @ torch.ones(2, 2, device="tpu")
        assert y.dtype in tpu.get_amp_supported_dtype()


def test_dispatch_keys_parse():
    for key in ("TPU", "AutogradTPU"):
        assert torch._C._parse_dispatch_key(key) is not None
    library = torch.library.Library("torch_tpu_contract", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "TPU")
    library.impl("twice", lambda x: x * 2, "CPU")
    for device in ("tpu", "cpu"):
        got = torch.ops.torch_tpu_contract.twice(torch.ones(2, device=device))
        assert got.tolist() == [2, 2]
        assert got.device.type == device


def test_custom_ops_for_the_device():
    @torch.library.custom_op("torch_tpu_contract::shift", mutates_args=(), device_types="tpu")
    def shift(x: torch.Tensor, by: float) -> torch.Tensor:
        return x + by

    assert shift(torch.ones(2, device="tpu"), 3.0).tolist() == [4, 4]
    with pytest.raises(NotImplementedError):
        shift(torch.ones(2), 3.0)


# ---- torch.compile ----


@pytest.mark.parametrize("mode", list(tpu.EagerMode), ids=lambda m: m.name)
def test_the_dynamo_backend_named_tpu(mode):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    @torch.compile(backend="tpu", dynamic=False, fullgraph=True)
    def step(x, cache):
        cache.add_(1)
        return torch.nn.functional.gelu(x @ cache) * 0.5

    with tpu.eager_mode(mode):
        x, cache = torch.ones(2, 3, device="tpu"), torch.zeros(3, 3, device="tpu")
        for _ in range(3):
            y = step(x, cache)
        assert cache.sum().item() == 27
        torch.testing.assert_close(y.cpu(), torch.nn.functional.gelu(torch.full((2, 3), 9.0)) * 0.5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # captured, and once


def test_gradients_through_a_compiled_function():
    @torch.compile(backend="tpu", dynamic=False)
    def f(x):
        return (x * x).sum()

    x = torch.arange(3.0, device="tpu", requires_grad=True)
    f(x).backward()
    assert x.grad.tolist() == [0, 2, 4]


def test_dynamo_knows_the_device_as_ours():
    code = """
import torch
torch.compile(lambda x: x + 1, backend="tpu")(torch.ones(1, device="tpu"))
from torch._dynamo.device_interface import get_interface_for_device
i = get_interface_for_device("tpu")
print(i.__module__, i.is_available(), i.device_count(), i.is_dtype_supported(torch.float64),
      get_interface_for_device("cpu").__module__)
"""
    assert python(code) == "torch_tpu.compile True 1 True torch._dynamo.device_interface"


# ---- names ----


def test_the_name_starts_with_tpu():
    name = tpu.get_device_name()
    assert name.startswith("TPU")
    if not tpu.get_device_properties().is_emulated:
        assert any(g in name for g in ("v4", "v5e", "v5p", "v6e", "v7"))


def test_one_process_one_device():
    code = """
import os, torch
assert torch.tpu.device_count() == 1
x = torch.ones(2, device=f"tpu:{os.environ['LOCAL_RANK']}")
torch.tpu.set_device(int(os.environ["LOCAL_RANK"]))
print(x.device, torch.tpu.current_device())
"""
    assert python(code, LOCAL_RANK="2") == "tpu:0 0"


# ---- servers: pinned staging buffers, one flat cache carved into views ----


def test_empty_host_cache_does_not_end_the_process():
    torch.ones(10).pin_memory()
    torch.accelerator.empty_host_cache()


def test_a_flat_byte_buffer_carved_into_views():
    raw = torch.zeros(4096, dtype=torch.int8, device="tpu")
    layers = [raw[i * 1024 : (i + 1) * 1024].view(torch.float32).view(4, 8, 8) for i in range(4)]
    layers[1][torch.tensor([0, 2], device="tpu")] = torch.ones(2, 8, 8, device="tpu")
    layers[2].index_put_(
        (torch.tensor([3], device="tpu"),), torch.full((1, 8, 8), 2.0, device="tpu")
    )
    strided = torch.as_strided(raw.view(torch.float32), (2, 4), (4, 1), 3 * 256)
    strided.copy_(torch.arange(8.0).view(2, 4))
    assert layers[0].sum().item() == 0
    assert layers[1].sum(dim=(1, 2)).tolist() == [64, 0, 64, 0]
    assert layers[2].sum().item() == 128
    assert layers[3].flatten()[:8].tolist() == list(range(8))


def test_threads_use_the_device_at_once():
    failed = []

    def work(seed):
        try:
            x = torch.full((16, 16), float(seed), device="tpu")
            for _ in range(30):
                x = x * 2 - seed
            assert (x == seed).all().item()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failed == []
