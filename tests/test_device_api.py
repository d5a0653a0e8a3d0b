# SPDX-License-Identifier: Apache-2.0 - the module torch.tpu and torch.accelerator: devices, memory, modes, statistics.
"""What callers written for torch.cuda ask of a device module."""

import os

import pytest
import torch
from fresh_process import python, run

tpu = torch.tpu


@pytest.fixture(autouse=True)
def strict():
    yield
    tpu.set_eager_mode(tpu.EagerMode.DEFER_NEVER)


# ---- devices ----


def test_one_device_named_tpu():
    assert tpu.is_available()
    assert tpu.device_count() == 1
    assert tpu.current_device() == 0
    assert torch.ones(1, device="tpu").device == torch.device("tpu", 0)
    assert torch.ones(1, device=0).device == torch.device("tpu", 0)
    assert torch.ones(1).tpu().is_tpu


@pytest.mark.parametrize("index", [0, None, "tpu", "tpu:0", torch.device("tpu"), "tpu:0"])
def test_what_means_the_device(index):
    tpu.set_device(index)
    tpu.synchronize(index)
    with tpu.device(index):
        assert tpu.current_device() == 0
    assert tpu.get_device_name(index) == tpu.get_device_name()


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (1, ValueError),
        (-2, ValueError),
        ("tpu:1", ValueError),
        ("cpu", ValueError),
        (1.5, TypeError),
    ],
)
def test_what_does_not(index, error):
    for function in (tpu.set_device, tpu.synchronize, tpu.device, tpu.memory_allocated):
        with pytest.raises(error):
            function(index)


def test_the_local_rank_means_the_device():
    code = """
import torch
torch.tpu.set_device(3)
torch.accelerator.set_device_index(3)
with torch.tpu.device("tpu:3"), torch.device("tpu", 3):
    assert torch.tpu.current_device() == 0
    x = torch.ones(2, device="tpu:3")
try:
    torch.tpu.set_device(2)
except ValueError as e:
    print(x.device, x.to("tpu:3").sum().item(), e)
"""
    assert python(code, LOCAL_RANK="3").startswith("tpu:0 2.0 there is no device tpu:2")


def test_device_of():
    with tpu.device_of(torch.ones(1, device="tpu")), tpu.device_of(torch.ones(1)):
        assert tpu.current_device() == 0


def test_exchange_device():
    assert tpu._exchange_device(0) == tpu._maybe_exchange_device(0) == 0
    assert tpu._maybe_exchange_device(-1) == 0


def test_properties_say_plainly_what_this_is():
    p = tpu.get_device_properties()
    assert p.name == tpu.get_device_name()
    assert p.name.startswith("TPU")
    assert p.multi_processor_count == 1
    assert p.total_memory == tpu.mem_get_info()[1] > 0
    assert os.path.isfile(p.plugin_path)
    assert len(p.plugin_identity) == 32
    assert p.plugin_version.startswith("PJRT C API 0.")
    assert p.is_emulated == (p.platform == "cpu")
    assert ("CPU plugin" in p.name) == p.is_emulated
    assert tpu.get_device_capability() == (p.major, p.minor)
    assert p.name in repr(p)


@pytest.mark.parametrize(
    ("kind", "generation"),
    [
        ("TPU v4", "v4"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5e", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("TPU v6e", "v6e"),
        ("TPU7x", "v7"),
        ("TPU v7x", "v7"),
        ("something", ""),
    ],
)
def test_generations(kind, generation):
    from torch_tpu.tpu.devices import generation_of

    assert generation_of(kind) == generation


def test_capabilities():
    assert tpu.is_bf16_supported()
    assert torch.bfloat16 in tpu.get_amp_supported_dtype()
    assert not tpu.can_device_access_peer(0, 0)
    tpu.ipc_collect()
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool} <= dtypes
    for dtype in dtypes:  # what is promised can be made and read back
        assert torch.empty(3, dtype=dtype, device="tpu").cpu().dtype == dtype
    assert torch.qint8 not in dtypes


@pytest.mark.parametrize("name", ["utilization", "temperature", "power_draw", "clock_rate"])
def test_what_cannot_be_measured_says_so(name):
    with pytest.raises(NotImplementedError, match="does not measure"):
        getattr(tpu, name)()


# ---- waking ----


def test_asking_does_not_wake_the_device_and_use_does():
    code = """
import torch
t = torch.tpu
seen = [t.is_available(), t.device_count(), t.current_device(), t._is_in_bad_fork(), t.default_generators,
        t.initial_seed(), t.get_rng_state(), t.memory_allocated(), t.memory_stats(), t.eager_mode(),
        t.cache_stats(), t.memory_summary(), torch.accelerator.is_available(), torch.device("tpu:0")]
t.manual_seed(1); torch.manual_seed(2); t.set_device(0); t.synchronize(); t.empty_cache()
t.reset_peak_memory_stats(); t.set_eager_mode(t.EagerMode.DEFER_AND_FUSE)
torch.accelerator.synchronize(); torch.accelerator.empty_host_cache(); t.Event()
torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
asleep = not t.is_initialized()
torch.ones(1, device="tpu")
print(asleep, t.is_initialized())
"""
    assert python(code) == "True True"


def test_without_a_plugin_torch_works_and_use_tells_what_to_install():
    code = """
import torch_tpu._plugins as plugins
plugins.search_paths = lambda: []
import torch
assert not torch.tpu.is_available() and torch.tpu.device_count() == 0
assert torch.accelerator.current_accelerator(check_available=True) is None
torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
try:
    torch.ones(1, device="tpu")
except RuntimeError as e:
    print(str(e).splitlines()[0])
"""
    code = "import sys\n" + code.replace(
        "import torch_tpu._plugins as plugins",
        "import importlib.util as u; s = u.find_spec('torch_tpu'); import os;"
        "f = u.spec_from_file_location('torch_tpu._plugins', os.path.join(os.path.dirname(s.origin), '_plugins.py'));"
        "plugins = u.module_from_spec(f); f.loader.exec_module(plugins); sys.modules['torch_tpu._plugins'] = plugins",
    )
    message = python(code, TORCH_TPU_PJRT_PLUGIN="")
    assert "no PJRT plugin is installed" in message
    assert "pip install" in message


# ---- torch.accelerator ----


def test_torch_accelerator_is_complete():
    a = torch.accelerator
    assert a.current_accelerator() == torch.device("tpu")
    assert a.is_available()
    assert a.device_count() == 1
    a.set_device_index(0)
    assert a.current_device_index() == 0
    with a.device_index(0):
        pass
    x = torch.ones(1000, device="tpu")
    a.synchronize()
    assert a.memory_allocated() >= x.nbytes
    assert a.memory_reserved() >= a.memory_allocated() - 1
    assert a.max_memory_allocated() >= a.memory_allocated()
    assert a.max_memory_reserved() >= 0
    free, total = a.get_memory_info()
    assert 0 < free <= total
    a.reset_peak_memory_stats()
    a.reset_accumulated_memory_stats()
    a.empty_cache()
    a.empty_host_cache()
    s = torch.Stream()
    assert s.device.type == "tpu"
    a.set_stream(s)
    assert a.current_stream() == s
    a.set_stream(tpu.default_stream())
    with pytest.raises(RuntimeError, match="tpu:5"):
        a.set_device_index(5)


# ---- memory ----


def test_memory_counts_what_tensors_hold():
    tpu.empty_cache()
    before = tpu.memory_allocated()
    x = torch.ones(1 << 20, device="tpu")
    y = x + 1
    assert tpu.memory_allocated() - before == 8 << 20
    view = y[100:]
    del x, y
    assert tpu.memory_allocated() - before == 4 << 20
    del view
    assert tpu.memory_allocated() == before


def test_peak_memory():
    x = torch.ones(1 << 20, device="tpu")
    tpu.reset_peak_memory_stats()
    base = tpu.max_memory_allocated()
    assert base == tpu.memory_allocated()
    y = x + x
    tpu.synchronize()
    del y
    assert tpu.max_memory_allocated() - base >= 4 << 20
    tpu.reset_peak_memory_stats()
    assert tpu.max_memory_allocated() == tpu.memory_allocated()


def test_memory_flat_over_a_loop():
    w = torch.ones(256, 256, device="tpu")
    for _ in range(5):
        w.mul_(1.01).sub_(0.01)
    now = tpu.memory_allocated()
    for _ in range(50):
        w.mul_(1.01).sub_(0.01)
    assert tpu.memory_allocated() == now


def test_memory_stats_have_the_names_of_cuda():
    torch.ones(3, device="tpu")
    stats = tpu.memory_stats()
    for group in ("allocation", "allocated_bytes", "reserved_bytes", "active_bytes"):
        for kind in ("current", "peak", "allocated", "freed"):
            assert stats[f"{group}.all.{kind}"] >= 0
    assert stats["allocated_bytes.all.current"] == tpu.memory_allocated()


def test_memory_summary_is_a_table():
    text = tpu.memory_summary()
    assert tpu.get_device_name() in text
    assert "in use" in text
    assert len({len(line) for line in text.splitlines()[1:]}) == 1
    assert len(tpu.memory_summary(abbreviated=True)) < len(text)


def test_pinned_memory():
    x = torch.arange(1000.0).pin_memory()
    assert x.is_pinned()
    assert x[10:20].is_pinned()
    assert x.data_ptr() % 64 == 0
    assert not torch.ones(3).is_pinned()
    assert torch.empty(5, pin_memory=True).is_pinned()
    assert torch.equal(x.to("tpu", non_blocking=True).cpu(), torch.arange(1000.0))
    used = tpu.host_memory_stats()["active_bytes.current"]
    assert used >= x.nbytes
    address = x.data_ptr()
    del x
    assert tpu.host_memory_stats()["active_bytes.current"] < used
    assert torch.empty(1000, pin_memory=True).data_ptr() == address  # blocks are used again
    torch.accelerator.empty_host_cache()


# ---- modes ----


def test_modes():
    assert tpu.eager_mode() is tpu.EagerMode.DEFER_NEVER
    for mode in tpu.EagerMode:
        tpu.set_eager_mode(mode)
        assert tpu.eager_mode() is mode
        x = torch.arange(6.0, device="tpu")
        assert (x * 2 + 1).sum().item() == 36
    with tpu.eager_mode(tpu.EagerMode.DEFER_NEVER):
        assert tpu.eager_mode() is tpu.EagerMode.DEFER_NEVER
    assert tpu.eager_mode() is mode

    @tpu.eager_mode(tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING)
    def inside():
        return tpu.eager_mode()

    assert inside() is tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
    assert tpu.eager_mode() is mode
    for wrong in ("fast", 1):
        with pytest.raises(TypeError, match="DEFER_AND_FUSE"):
            tpu.set_eager_mode(wrong)


def test_a_change_of_mode_keeps_what_was_deferred():
    with tpu.eager_mode(tpu.EagerMode.DEFER_AND_FUSE):
        x = torch.arange(6.0, device="tpu") + 1
    assert (x * 2).tolist() == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize(
    ("variable", "mode"),
    [
        ("TORCH_TPU_DEFER_AND_FUSE", "DEFER_AND_FUSE"),
        ("TORCH_TPU_LAUNCH_BLOCKING", "DEFER_NEVER_AND_LAUNCH_BLOCKING"),
    ],
)
def test_modes_by_environment(variable, mode):
    assert python("import torch; print(torch.tpu.eager_mode().name)", **{variable: "1"}) == mode


def test_precision():
    assert torch.get_float32_matmul_precision() == "highest"
    with tpu.precision(tpu.Precision.HIGH):
        assert torch.get_float32_matmul_precision() == "high"
        with tpu.precision(tpu.Precision.DEFAULT):
            assert torch.get_float32_matmul_precision() == "medium"
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "highest"
    with pytest.raises(ValueError, match=r"Precision\.HIGHEST"):
        tpu.precision("high")


# ---- statistics ----


def test_cache_stats_tell_what_was_compiled_and_found(tmp_path):
    code = """
import torch
def work():
    x = torch.arange(37.0, device="tpu")
    return ((x * 3 - 1).sum() / 7).item()
work()
s = torch.tpu.cache_stats()
assert s["disk_cache"]["directory"].startswith(DIR) and s["disk_cache"]["bytes"] > 0, s
assert s["programs_in_memory"] > 0 and s["run_seconds"] > 0, s
torch.tpu.reset_cache_stats()
work()
t = torch.tpu.cache_stats()
assert t["programs_compiled"] == t["disk_hits"] == 0 and t["compile_seconds"] == 0, t
assert t["memory_hits"] > 0 or t["programs_run"] > 0, t
print(s["programs_compiled"], s["disk_hits"], s["compile_seconds"] > 0, s["load_seconds"] > 0)
""".replace("DIR", repr(str(tmp_path)))
    first = python(code, TORCH_TPU_CACHE_DIR=str(tmp_path)).split()
    second = python(code, TORCH_TPU_CACHE_DIR=str(tmp_path)).split()
    assert int(first[0]) > 0
    assert first[2] == "True"
    assert second == ["0", str(int(first[0]) + int(first[1])), "False", "True"]


def test_fallback_counts():
    code = """
import torch
op = torch.ops.aten._histogramdd_bin_edges
x = torch.rand(20, 2, device="tpu")
def run():
    return op(x, [3, 4])
try:
    run()
except NotImplementedError as e:
    print("refused", torch.tpu.fallback_counts())
else:
    print("ran", torch.tpu.fallback_counts())
"""
    assert python(code).startswith(("refused {}", "ran {}"))
    assert run(code, TORCH_TPU_CPU_FALLBACK="1").stdout.startswith("ran")
