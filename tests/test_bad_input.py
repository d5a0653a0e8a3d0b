# SPDX-License-Identifier: Apache-2.0 - bad input: a plain exception, and the process and the device alive after it.
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fresh_process import run

tpu = torch.tpu


def t(*shape, dtype=torch.float32):
    return torch.ones(*shape, device="tpu", dtype=dtype)


def alive():
    x = torch.arange(6.0, device="tpu")
    assert ((x + 1) * 2).tolist() == [2, 4, 6, 8, 10, 12]


@pytest.fixture(params=list(tpu.EagerMode), ids=lambda m: m.name)
def mode(request):
    with tpu.eager_mode(request.param):
        yield
        alive()
    tpu.synchronize()


# What is wrong, the exception, and what its text must name.
WRONG = [
    ("shape: add", lambda: t(2, 3) + t(4), RuntimeError, "3.*4"),
    ("shape: mm", lambda: t(2, 3) @ t(4, 5), RuntimeError, "2x3.*4x5"),
    ("shape: bmm", lambda: torch.bmm(t(2, 3, 4), t(2, 5, 6)), RuntimeError, "bmm|batch|4.*5"),
    ("shape: view", lambda: t(6).view(4, 2), RuntimeError, "invalid for input of size 6"),
    ("shape: cat", lambda: torch.cat([t(2, 3), t(2, 4)], 0), RuntimeError, "3.*4|Sizes"),
    ("shape: conv", lambda: torch.conv2d(t(1, 3, 8, 8), t(4, 2, 3, 3)), RuntimeError, "channels"),
    ("shape: expand", lambda: t(3).expand(4), RuntimeError, "3.*4|4.*3"),
    ("dim", lambda: t(2, 3).sum(5), IndexError, "[Dd]imension.*5"),
    ("dim: softmax", lambda: t(2).softmax(3), IndexError, "3"),
    ("dtype: mm", lambda: t(2, 2) @ t(2, 2, dtype=torch.float64), RuntimeError, "dtype|float.*double"),
    ("dtype: sqrt_", lambda: t(2, dtype=torch.int64).sqrt_(), RuntimeError, "(?i)can't be cast|long"),
    ("dtype: and", lambda: t(2) & t(2), (RuntimeError, TypeError, NotImplementedError), "(?i)and|float"),
    ("dtype: quantized", lambda: torch.empty(2, dtype=torch.qint8, device="tpu"), NotImplementedError, "Quantized"),
    ("device: cpu", lambda: t(2) + torch.ones(2), RuntimeError, "same device.*tpu:0.*cpu"),
    ("device: cpu first", lambda: torch.ones(2) + t(2), RuntimeError, "same device|tpu"),
    ("device: mm", lambda: torch.ones(2, 2) @ t(2, 2), RuntimeError, "tpu"),
    ("device: index", lambda: torch.empty(2, device="tpu:1"), RuntimeError, "tpu:0|one device|index"),
    ("device: to", lambda: torch.ones(2).to("tpu:3"), RuntimeError, "tpu:0|one device|index"),
    ("item", lambda: t(2).item(), RuntimeError, "2 elements|Scalar"),
    ("bool", lambda: bool(t(2)), RuntimeError, "ambiguous"),
    ("index: int", lambda: t(3)[5], IndexError, "5.*3"),
    ("in-place broadcast", lambda: t(3).add_(t(2, 3)), RuntimeError, "shape|broadcast"),
    ("in-place overlap", lambda: t(1).expand(3).add_(1), RuntimeError, "(?i)single memory location"),
    ("leaf", lambda: t(2).requires_grad_().add_(1), RuntimeError, "leaf"),
    ("as_strided", lambda: t(4).as_strided((4, 4), (4, 1)), RuntimeError, "(?i)storage"),
    ("negative size", lambda: torch.empty(-1, device="tpu"), RuntimeError, "negative"),
    ("integer by zero", lambda: t(2).long() // 0, RuntimeError, "ZeroDivisionError"),
    ("no such reduction", lambda: torch.nn.functional.mse_loss(t(2), t(2), reduction="x"), ValueError, "x"),
    ("backward twice", lambda: _backward_twice(), RuntimeError, "second time"),
]  # fmt: skip


def _backward_twice():
    y = (t(2).requires_grad_() ** 2).sum()
    y.backward()
    y.backward()


@pytest.mark.parametrize(
    ("call", "error", "words"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_said_at_once(call, error, words):
    with pytest.raises(error, match=words):
        call()


def index(*numbers):
    return lambda device: torch.tensor(numbers, device=device)


# Found by the device: said when the host next waits, by the exception that the CPU raises.
LATE = [
    ("index 9 is out of bounds for dimension 0 with size 4", lambda x, i: x[i], index(0, 9)),
    ("index", lambda x, i: x[i], index(-5)),
    ("gather", lambda x, i: x.gather(0, i), index(7)),
    ("index_select", lambda x, i: x.index_select(0, i), index(4)),
    ("embedding", lambda x, i: torch.nn.functional.embedding(i, x.view(4, 1)), index(8)),
    ("scatter", lambda x, i: x.scatter_(0, i, 1.0), index(6)),
    ("index_put", lambda x, i: x.index_put_((i,), x[:1] * 2), index(6)),
    ("ZeroDivisionError", lambda x, i: i // (i - 3), index(3)),
    ("ZeroDivisionError", lambda x, i: 5 % i, index(0)),
    ("nll_loss", lambda x, i: torch.nn.functional.nll_loss(x.view(1, 4), i), index(5)),
]


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(
    ("words", "call", "where"), LATE, ids=[f"{i}-{w[0]}" for i, w in enumerate(LATE)]
)
def test_said_when_the_host_waits(call, words, where):
    with pytest.raises((IndexError, RuntimeError)) as theirs:
        call(torch.ones(4), where("cpu"))
    x, i = t(4), where("tpu")
    with pytest.raises(theirs.type, match=words) as ours:
        call(x, i)
        tpu.synchronize()
    assert ours.type is theirs.type
    assert __file__ in str(ours.value)  # the line that asked for it, not one inside torch


@pytest.mark.usefixtures("mode")
def test_reading_a_result_tells_what_went_wrong_before_it():
    x, i = t(4), index(9)("tpu")
    with pytest.raises(IndexError, match="index"):
        (x[i] + 1).tolist()


@pytest.mark.usefixtures("mode")
def test_out_of_memory_says_how_much_and_what_to_do():
    total = tpu.mem_get_info()[1]
    with pytest.raises(torch.OutOfMemoryError, match="MiB") as caught:
        torch.empty(total * 2, dtype=torch.uint8, device="tpu")
    assert "TORCH_TPU_MEMORY_LIMIT_MB" in str(caught.value)
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(total, dtype=torch.float32, device="tpu").sum().item()


# ---- in processes of their own ----


TRY = """
import torch
try:
    torch.ones(2, device="tpu").sum().item()
except Exception as e:
    print(type(e).__name__, str(e).splitlines()[0])
assert torch.ones(2).sum().item() == 2
"""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: None, "no such file"),
        (lambda p: p.write_text("not a library"), "not|ELF|library"),
        (lambda p: p.write_bytes(Path("/proc/self/exe").read_bytes()), "GetPjrtApi|load|plugin"),
        (lambda p: p.mkdir(), "directory|not a"),
    ],
    ids=["missing", "text", "another program", "directory"],
)
def test_a_broken_plugin_path(tmp_path, make, words):
    make(tmp_path / "plugin.so")
    done = run(TRY, TORCH_TPU_PJRT_PLUGIN=str(tmp_path / "plugin.so"))
    assert done.stdout.startswith("RuntimeError")
    assert "plugin.so" in done.stdout
    assert re.search(words, done.stdout), done.stdout
    assert done.stderr == ""


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "flipped":
        path.write_bytes(data[:200] + bytes(b ^ 0xFF for b in data[200:260]) + data[260:])


SUM = """
import torch, warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    x = torch.arange(9.0, device="tpu")
    print(((x + 1) * 3).sum().item())
    torch.tpu.synchronize()
    s = torch.tpu.cache_stats()
print(s["programs_compiled"], len(seen), *{str(w.message) for w in seen})
"""


@pytest.fixture(scope="module")
def filled_cache(tmp_path_factory):
    """A cache folder, and how many programs were compiled to fill it."""
    folder = tmp_path_factory.mktemp("filled") / "cache"
    result, counts = run(SUM, TORCH_TPU_CACHE_DIR=str(folder)).stdout.splitlines()
    assert result == "135.0"
    compiled, warned = counts.split()
    assert warned == "0"
    return folder, compiled


def damaged_copy(filled_cache, tmp_path, how):
    shutil.copytree(filled_cache[0], tmp_path / "cache")
    files = [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.stat().st_size > 100]
    assert files
    for path in files:
        damage(path, how)
    return {"TORCH_TPU_CACHE_DIR": str(tmp_path / "cache")}


@pytest.mark.parametrize("how", ["truncated", "empty", "flipped"])
def test_damaged_cache_files_are_misses_with_one_warning(filled_cache, tmp_path, how):
    cache = damaged_copy(filled_cache, tmp_path, how)
    done = run(SUM, **cache)
    result, counts = done.stdout.splitlines()
    assert result == "135.0"
    assert counts.split()[:2] == [filled_cache[1], "1"]
    assert "cache" in counts
    assert done.stderr == ""
    again = run(SUM, **cache).stdout.splitlines()  # the damaged ones were replaced
    assert again == ["135.0", "0 0"]


def test_a_program_that_never_asks_hears_of_damage_at_its_end(filled_cache, tmp_path):
    code = "import torch; x = torch.arange(9.0, device='tpu'); print(((x + 1) * 3).sum().item())"
    done = run(code, **damaged_copy(filled_cache, tmp_path, "truncated"))
    assert done.stdout.strip() == "135.0"
    assert done.stderr.count("Warning") == 1


def test_a_cache_that_cannot_be_written_is_no_cache(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = run(
        "import torch; print(torch.ones(3, device='tpu').sum().item())",
        TORCH_TPU_CACHE_DIR=str(blocked / "cache"),
    )
    assert done.stdout.strip() == "3.0"


def test_a_memory_limit():
    code = """
import torch
print(torch.tpu.mem_get_info()[1] >> 20)
x = torch.ones(8 << 20, device="tpu")
try:
    y = torch.empty(64 << 20, device="tpu")
except torch.OutOfMemoryError as e:
    print("OutOfMemoryError")
del x
print(torch.ones(8 << 20, device="tpu").sum().item())
"""
    lines = run(code, TORCH_TPU_MEMORY_LIMIT_MB="100").stdout.split()
    assert lines == ["100", "OutOfMemoryError", str(float(8 << 20))]


# ---- fork ----

FORK = """
import os, sys, torch
if {used}:
    x = torch.ones(2, device="tpu")
    x.sum().item()
child = os.fork()
if child == 0:
    try:
        if {used}:
            assert torch.tpu._is_in_bad_fork() and not torch.tpu.is_initialized()
            torch.manual_seed(3)
            torch.tpu.is_available(), torch.tpu.device_count(), torch.tpu.current_stream
        for use in (lambda: torch.ones(3, device="tpu").sum().item(), lambda: x + 1, lambda: x.cpu(),
                    torch.tpu.synchronize, torch.tpu.init, lambda: torch.tpu.current_stream().synchronize()):
            try:
                use()
                print("worked")
            except NameError:
                pass
            except RuntimeError as e:
                print(str(e).splitlines()[0])
        sys.stdout.flush()
        code = 0
    except BaseException as e:
        print("child failed:", repr(e), flush=True)
        code = 1
    if {used}:
        del x
    sys.exit(code)
_, status = os.waitpid(child, 0)
print("status", status)
print(torch.ones(3, device="tpu").sum().item())
"""


def test_a_child_forked_after_use_is_told_so():
    lines = run(FORK.format(used=True)).stdout.splitlines()
    assert lines[-2:] == ["status 0", "3.0"]
    assert len(lines) == 8
    for line in lines[:6]:
        assert "forked" in line
        assert "spawn" in line


def test_a_child_forked_before_use_may_use_it():
    lines = run(FORK.format(used=False)).stdout.splitlines()
    assert lines[-2:] == ["status 0", "3.0"]
    assert set(lines[:-2]) == {"worked"}


def test_the_end_of_a_process_is_quiet():
    """Work in flight, tensors and threads alive at exit."""
    code = """
import atexit, threading, torch
atexit.register(lambda: print(torch.ones(2, device="tpu").sum().item()))
x = torch.full((256, 256), 1 / 256, device="tpu")
for _ in range(50):
    x = x @ x
e = torch.tpu.Event(enable_timing=True)
e.record()
threading.Thread(target=lambda: torch.ones(3, device="tpu").mul_(2), daemon=True).start()
"""
    done = run(code)
    assert done.stdout.strip() == "2.0"
    assert done.stderr == ""


@pytest.mark.parametrize("mode", ["DEFER_NEVER", "DEFER_AND_FUSE"])
def test_memory_that_fills_up_bit_by_bit_is_an_error_in_time(mode):
    script = f"""
import torch
torch.tpu.set_eager_mode(torch.tpu.EagerMode.{mode})
x, kept = torch.zeros(2_000_000, device="tpu"), []
try:
    for _ in range(60):
        kept.append(x + 1)
    torch.tpu.synchronize()
except torch.OutOfMemoryError as error:
    assert "TORCH_TPU_MEMORY_LIMIT_MB" in str(error), error
else:
    raise AssertionError("60 tensors of 7.6 MiB fitted into 100 MiB")
assert 10 <= len(kept) <= 12, len(kept)
try:
    torch.zeros(20_000_000).to("tpu")
except torch.OutOfMemoryError:
    pass
else:
    raise AssertionError("a copy of 76 MiB fitted")
kept.clear()
assert (x[:3] + 1).tolist() == [1.0, 1.0, 1.0]
"""
    subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TORCH_TPU_MEMORY_LIMIT_MB": "100"},
        check=True,
        timeout=120,
    )
