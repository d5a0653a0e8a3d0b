# SPDX-License-Identifier: Apache-2.0 - save, load, copy and exchange of tensors: files, pickle, deepcopy, DLPack, NumPy.
import copy
import io
import pickle

import numpy
import pytest
import torch
from fresh_process import python

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]


def make(dtype, *shape):
    torch.manual_seed(0)
    x = torch.randn(*shape, dtype=torch.complex64) if dtype.is_complex else torch.randn(*shape)
    return (x * 10).abs().to(dtype) if dtype == torch.uint8 else (x * 10).to(dtype)


def same(a, b):
    """Same bits, wherever they are."""
    a, b = a.detach().cpu(), b.detach().cpu()
    if a.dtype == torch.float8_e4m3fn:
        a, b = a.view(torch.uint8), b.view(torch.uint8)
    return a.dtype == b.dtype and torch.equal(a, b)


def through_file(obj, **options):
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


WAYS = {
    "save and load": through_file,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "clone": torch.clone,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_round_trips(way, dtype):
    if dtype == torch.float8_e4m3fn and way in ("pickle", "copy"):
        pytest.skip("PyTorch cannot pickle this dtype, on any device")
    t = make(dtype, 3, 5)
    got = WAYS[way](t.tpu())
    assert got.device == torch.device("tpu", 0)
    assert same(got, t)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_from_device_to_cpu_and_back(dtype):
    t = make(dtype, 3, 5)
    on_cpu = through_file(t.tpu(), map_location="cpu")
    assert on_cpu.device.type == "cpu"
    assert same(on_cpu, t)
    on_device = through_file(t, map_location="tpu")
    assert on_device.device.type == "tpu"
    assert same(on_device, t)


@pytest.mark.parametrize("way", [through_file, copy.deepcopy], ids=["save and load", "deepcopy"])
def test_views_keep_sharing_their_storage(way):
    base = torch.arange(20.0).tpu()
    views = {"all": base, "row": base.view(4, 5)[2], "t": base.view(4, 5).t(), "step": base[1::3]}
    got = way(views)
    for name, view in views.items():
        assert same(got[name], view), name
        assert got[name].stride() == view.stride()
        assert got[name].storage_offset() == view.storage_offset()
    got["all"].fill_(7)
    assert got["row"].tolist() == [7] * 5
    assert got["step"].sum().item() == 49
    assert base.sum().item() == 190


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(7, 4)
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.tensor(3))


def test_tied_weights_stay_tied(tmp_path):
    model = Tied().tpu()
    assert model.head.weight is model.embed.weight
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for location in ("tpu", "cpu"):
        state = torch.load(tmp_path / "model.pt", map_location=location)
        assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()
        assert {t.device.type for t in state.values()} == {location}
        assert same(state["embed.weight"], model.embed.weight)
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embed.weight
    assert twin.head.weight is not model.head.weight
    with torch.no_grad():
        twin.embed.weight.zero_()
    assert twin.head.weight.abs().sum().item() == 0
    assert model.head.weight.abs().sum().item() > 0


def test_load_on_a_machine_without_the_device(tmp_path):
    """There torch does not even know the name: autoload off stands for torch_tpu not installed."""
    model = Tied().tpu()
    optimizer = torch.optim.AdamW(model.parameters())
    model.head(model.embed(torch.tensor([1], device="tpu"))).sum().backward()
    optimizer.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "x.pt"
    )
    torch.save(model.embed.weight.detach().cpu(), tmp_path / "wanted.pt")
    code = f"""
import sys, torch
assert not hasattr(torch, "tpu")
state = torch.load({str(tmp_path / "x.pt")!r}, map_location="cpu")
assert state["model"]["head.weight"].data_ptr() == state["model"]["embed.weight"].data_ptr()
assert torch.equal(state["model"]["embed.weight"], torch.load({str(tmp_path / "wanted.pt")!r}))
assert state["optimizer"]["state"][0]["exp_avg"].device.type == "cpu"
assert "torch_tpu" not in sys.modules
try:
    torch.load({str(tmp_path / "x.pt")!r})
except RuntimeError as e:
    print("without map_location:", e)
"""
    assert "map_location" in python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_parameters_and_gradients(tmp_path):
    p = torch.nn.Parameter(torch.ones(3, device="tpu"))
    (p * 2).sum().backward()
    for got in (through_file(p), pickle.loads(pickle.dumps(p)), copy.deepcopy(p)):
        assert isinstance(got, torch.nn.Parameter)
        assert got.requires_grad
        assert same(got, p)
    assert p.grad.tolist() == [2, 2, 2]


def test_optimizer_resumes_where_it_was(tmp_path):
    def train(steps, model, optimizer):
        for i in range(steps):
            optimizer.zero_grad()
            model(torch.full((2, 3), 1.0 + i, device="tpu")).square().sum().backward()
            optimizer.step()

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).tpu()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(2, model, optimizer)
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "x.pt")
    train(2, model, optimizer)
    resumed = torch.nn.Linear(3, 2).tpu()
    again = torch.optim.AdamW(resumed.parameters(), lr=0.1)
    weights, state = torch.load(tmp_path / "x.pt", map_location="cpu")
    resumed.load_state_dict(weights)
    again.load_state_dict(state)
    train(2, resumed, again)
    assert same(resumed.weight, model.weight)


def test_pending_values_are_saved():
    with torch.tpu.eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
        t = torch.arange(5.0, device="tpu") * 2
        t[1:3] += 1
        assert through_file(t, map_location="cpu").tolist() == [0, 3, 5, 6, 8]


def test_storages():
    t = torch.arange(6, dtype=torch.int32, device="tpu")
    s = t.untyped_storage()
    assert s.device == torch.device("tpu", 0)
    assert s.nbytes() == 24
    assert s.cpu().tolist() == torch.arange(6, dtype=torch.int32).untyped_storage().tolist()
    assert torch.frombuffer(bytearray(s.cpu()), dtype=torch.int32).tolist() == list(range(6))
    twin = s.clone()
    assert twin.data_ptr() != s.data_ptr()
    back = torch.empty(0, dtype=torch.int32, device="tpu").set_(twin, 0, (6,), (1,))
    assert torch.equal(back, t)
    s.resize_(40)
    assert s.nbytes() == 40
    assert t.tolist() == list(range(6))


def test_a_location_that_does_not_exist():
    buffer = io.BytesIO()
    torch.save(torch.ones(2), buffer)
    buffer.seek(0)
    with pytest.raises(RuntimeError, match="device_count"):
        torch.load(buffer, map_location="tpu:7")


# ---- NumPy ----


def test_numpy():
    t = torch.arange(6.0, device="tpu").view(2, 3)
    with pytest.raises(TypeError, match=r"tpu.*Tensor\.cpu\(\)"):
        t.numpy()
    with pytest.raises(TypeError, match=r"Tensor\.cpu\(\)"):
        numpy.asarray(t)
    assert t.numpy(force=True).tolist() == t.tolist()
    array = numpy.arange(6.0).reshape(2, 3)
    u = torch.from_numpy(array).tpu()
    array[:] = 0
    assert u.sum().item() == 15  # the copy was made when .tpu() returned
    assert torch.tensor(numpy.float32(3), device="tpu").item() == 3
    assert torch.as_tensor(numpy.arange(3)[::-1].copy(), device="tpu").tolist() == [2, 1, 0]


# ---- DLPack ----

shared = pytest.mark.skipif(
    not torch.tpu.get_device_properties().is_emulated, reason="a TPU's memory cannot be shared"
)


@shared
def test_dlpack_to_numpy_shares_memory_read_only():
    t = torch.arange(12.0, device="tpu").view(3, 4)
    a = numpy.from_dlpack(t)
    b = numpy.from_dlpack(t.t()[1:])
    assert a.tolist() == t.tolist()
    assert b.tolist() == t.t()[1:].tolist()
    assert not a.flags.writeable
    assert numpy.shares_memory(a, b)
    assert numpy.from_dlpack(t, copy=True).flags.writeable


@shared
@pytest.mark.parametrize("mode", list(torch.tpu.EagerMode), ids=lambda m: m.name)
def test_an_export_is_a_snapshot(mode):
    """What was exported stays as it was: later writes go elsewhere, and its memory is not given away."""
    with torch.tpu.eager_mode(mode):
        t = torch.arange(1000.0, device="tpu")
        a = numpy.from_dlpack(t)
        for _ in range(3):
            t.add_(1)
            t[3:7] = 0
        assert a.tolist() == list(range(1000))
        del t
        torch.tpu.synchronize()
        torch.ones(1000, device="tpu").mul_(5).sum().item()
        assert a.tolist() == list(range(1000))


@shared
def test_exports_keep_memory_and_give_it_back():
    before = torch.tpu.memory_allocated()
    t = torch.ones(1 << 20, device="tpu")
    a = numpy.from_dlpack(t)
    del t
    assert torch.tpu.memory_allocated() - before >= 4 << 20
    assert a.sum() == 1 << 20
    del a
    assert torch.tpu.memory_allocated() == before
    capsule = torch.tpu.to_dlpack(torch.ones(1 << 20, device="tpu"))
    del capsule  # never consumed
    assert torch.tpu.memory_allocated() == before


def test_dlpack_asked_for_on_the_cpu():
    t = torch.arange(4, device="tpu")
    assert numpy.from_dlpack(t, device="cpu").tolist() == [0, 1, 2, 3]
    capsule = torch.tpu.to_dlpack(t)
    got = torch.from_dlpack(capsule)
    assert got.device.type == "cpu"
    assert got.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "dtype", [d for d in DTYPES if d not in (torch.bfloat16, torch.float8_e4m3fn)], ids=str
)
def test_dlpack_dtypes(dtype):
    t = make(dtype, 3, 5)
    array = numpy.from_dlpack(t.tpu(), device="cpu")
    assert torch.equal(torch.from_numpy(array.copy()), t)
    assert same(torch.tpu.from_dlpack(array), t)


def test_dlpack_of_what_cannot_be_exported():
    t = torch.ones(2, device="tpu", requires_grad=True)
    with pytest.raises(BufferError, match="detach"):
        numpy.from_dlpack(t)
    with pytest.raises(BufferError, match="conjugate"):
        numpy.from_dlpack(torch.ones(2, dtype=torch.complex64, device="tpu").conj())
    with pytest.raises(ValueError, match="expected a tpu tensor"):
        torch.tpu.to_dlpack(torch.ones(2))
    assert numpy.from_dlpack(torch.ones(2)).tolist() == [1, 1]  # the CPU's own way is untouched
    assert numpy.from_dlpack(torch.empty(0, 3, device="tpu"), device="cpu").shape == (0, 3)


def test_from_dlpack():
    array = numpy.arange(6.0)
    t = torch.from_dlpack(array).tpu()
    u = torch.from_dlpack(array, device="tpu")
    v = torch.tpu.from_dlpack(array)
    array[:] = 0
    for got in (t, u, v):
        assert got.device.type == "tpu"
        assert got.tolist() == [0, 1, 2, 3, 4, 5]


@shared
def test_from_dlpack_can_share():
    host = torch.arange(4096.0).pin_memory()  # aligned
    before = torch.tpu.memory_allocated()
    t = torch.tpu.from_dlpack(host.numpy(), copy=False)
    assert (t * 2).sum().item() == 4095 * 4096
    t.zero_()
    assert t.sum().item() == 0
    assert host.sum().item() == 4095 * 2048  # writing to the tensor does not write to the array
    del t
    assert torch.tpu.memory_allocated() == before
    with pytest.raises(ValueError, match="contiguous"):
        torch.tpu.from_dlpack(host.numpy()[::2], copy=False)
    with pytest.raises(ValueError, match="align"):
        torch.tpu.from_dlpack(host.numpy()[1:], copy=False)


def test_multiprocessing_sends_a_copy():
    """Queues and pipes of torch.multiprocessing; the other side is this process, to be quick."""
    receiver, sender = torch.multiprocessing.Pipe(duplex=False)
    x = torch.arange(6.0, device="tpu").view(2, 3)
    sender.send((x, x[1], torch.nn.Parameter(x.t()), torch.empty(0, 3, device="tpu")))
    found, row, parameter, empty = receiver.recv()
    found[1] += 10
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert row.tolist() == [13, 14, 15]  # tied as they were
    assert (found.device.type, parameter.requires_grad) == ("tpu", True)
    assert (parameter.stride(), empty.shape) == ((1, 3), (0, 3))
