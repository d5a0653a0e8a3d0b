# SPDX-License-Identifier: Apache-2.0 - the disk cache of compiled programs: hits, damage, races, limits.
"""Each process here has a cache folder of its own, so nothing depends on what ran before."""

import io
import json
import os
import random
import struct
import subprocess
import sys
import tarfile
import threading
import time

import pytest
from fresh_process import run

# Six programs of a known value; what the process says of its cache is the last line.
WORK = """
import json, sys, warnings
import torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = torch.arange(12.0).view(3, 4).to("tpu")
    y = x.softmax(1) @ x.t() + x.sum()
    z = torch.relu_(y.cumsum(0) - 70)
    value = z.tolist()
    stats = torch.tpu.cache_stats()
    torch.tpu.synchronize()
host = torch.arange(12.0).view(3, 4)
want = torch.relu_((host.softmax(1) @ host.t() + host.sum()).cumsum(0) - 70)
torch.testing.assert_close(torch.tensor(value), want)
torch.tpu.synchronize()
print(json.dumps({
    "compiled": stats["programs_compiled"],
    "loaded": stats["disk_hits"],
    "from_root": stats["root_hits"],
    "directory": stats["disk_cache"]["directory"],
    "bytes": stats["disk_cache"]["bytes"],
    "warnings": [str(w.message) for w in caught],
}))
"""


def start(directory, **environment):
    env = os.environ | {"TORCH_TPU_CACHE_DIR": str(directory)} | environment
    return subprocess.Popen(
        [sys.executable, "-c", WORK],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert err == ""
    return json.loads(out.splitlines()[-1])


def work(directory, **environment):
    return finish(start(directory, **environment))


def entries(directory):
    return sorted(directory.glob("*.tpux"))


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache that one process has filled, and what that process said."""
    directory = tmp_path_factory.mktemp("cache")
    return directory, work(directory)


@pytest.fixture
def copy(filled, tmp_path):
    directory = tmp_path / "cache"
    directory.mkdir()
    for entry in entries(filled[0]):
        (directory / entry.name).write_bytes(entry.read_bytes())
    return directory


def test_a_second_process_compiles_nothing(filled):
    directory, first = filled
    assert first["compiled"] >= 5
    assert first["loaded"] == 0
    assert first["warnings"] == []
    assert first["directory"] == str(directory)
    assert len(entries(directory)) == first["compiled"]
    assert [p.name for p in directory.iterdir() if p.suffix != ".tpux"] == []
    second = work(directory)
    assert (second["compiled"], second["loaded"]) == (0, first["compiled"])
    assert second["warnings"] == []
    assert second["bytes"] == sum(p.stat().st_size for p in entries(directory))


def test_damaged_entries_are_misses_with_one_warning(copy):
    """Cut short, changed in the middle, from another plugin, empty, not an entry at all."""
    good = {p: p.read_bytes() for p in entries(copy)}
    truncated, changed, foreign, empty, garbage = list(good)[:5]
    truncated.write_bytes(good[truncated][:-100])
    middle = bytearray(good[changed])
    middle[len(middle) // 2] ^= 0xFF
    changed.write_bytes(middle)
    # After the eight bytes of the magic number comes the plugin's identity.
    foreign.write_bytes(good[foreign][:8] + b"x" * 32 + good[foreign][40:])
    empty.write_bytes(b"")
    garbage.write_bytes(b"not a program" * 100)
    found = work(copy)
    assert found["compiled"] == 5
    assert found["loaded"] == len(good) - 5
    assert len(found["warnings"]) == 1, found["warnings"]
    assert "executable cache" in found["warnings"][0]
    assert str(copy) in found["warnings"][0]
    # They were made again.
    found = work(copy)
    assert (found["compiled"], found["loaded"], found["warnings"]) == (0, len(good), [])


def checksum(contents):
    """The cache's own, so that a bad entry can be made that only the plugin can tell from a good one."""
    mask = (1 << 64) - 1

    def fold(x, y):
        product = x * y
        return (product & mask) ^ (product >> 64)

    def word(w):
        nonlocal a, b
        a = fold(a ^ w, 0x9E3779B97F4A7C15)
        b = fold((b + w) & mask, 0xD6E8FEB86659FD93) ^ (w << 1 & mask)

    a, b = 0x243F6A8885A308D3, 0x13198A2E03707344
    word(len(contents))
    for i in range(0, len(contents), 8):
        word(int.from_bytes(contents[i : i + 8], "little"))
    return fold(a ^ 0xA0761D6478BD642F, b | 1), fold(b ^ 0xE7037ED1A0B428DB, a | 1)


def test_a_whole_entry_that_the_plugin_refuses_is_a_miss(copy):
    good = {p: p.read_bytes() for p in entries(copy)}
    for victim, contents in zip(
        list(good)[:2], (b"no program", list(good.values())[-1][300:800]), strict=True
    ):
        frame = good[victim][:40]
        assert checksum(good[victim][72:]) == struct.unpack("<QQ", good[victim][56:72])
        numbers = struct.pack("<QQQQ", 0, len(contents), *checksum(contents))
        victim.write_bytes(frame + numbers + contents)
    found = work(copy)
    assert (found["compiled"], found["loaded"]) == (2, len(good) - 2)


def test_processes_racing_on_one_folder(tmp_path):
    processes = [start(tmp_path) for _ in range(3)]
    results = [None] * 3

    def wait(i):
        results[i] = finish(processes[i])

    threads = [threading.Thread(target=wait, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    count = len(entries(tmp_path))
    for r in results:
        assert r["warnings"] == []
        assert r["compiled"] + r["loaded"] == count
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".tpux"] == []
    assert work(tmp_path)["compiled"] == 0


def test_turned_off(tmp_path):
    found = work(tmp_path, TORCH_TPU_CACHE="0")
    assert found["compiled"] >= 5
    assert (found["directory"], found["bytes"], found["warnings"]) == ("", 0, [])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    found = work(tmp_path / "file" / "cache")
    assert found["compiled"] >= 5
    assert len(found["warnings"]) == 1
    assert "nothing is cached on disk" in found["warnings"][0]
    assert str(tmp_path / "file") in found["warnings"][0]


def test_a_shared_root_serves_machines_that_have_nothing(tmp_path):
    """A folder, and a URL: what the first process compiled, the second finds at the root."""
    for root in (str(tmp_path / "root"), f"file://{tmp_path}/url"):
        name = root.rsplit("/", 1)[1]
        first = work(tmp_path / f"{name}1", TORCH_TPU_CACHE_ROOT=root)
        assert (first["from_root"], first["warnings"]) == (0, [])
        assert len(entries(tmp_path / name)) == first["compiled"]
        second = work(tmp_path / f"{name}2", TORCH_TPU_CACHE_ROOT=root)
        assert (second["compiled"], second["from_root"]) == (0, first["compiled"])
        # From now on they are here.
        third = work(tmp_path / f"{name}2")
        assert (third["compiled"], third["loaded"]) == (0, first["compiled"])
        assert not [p for p in (tmp_path / name).iterdir() if p.suffix != ".tpux"]


def test_a_root_that_cannot_be_reached_is_one_warning(tmp_path):
    found = work(tmp_path / "local", TORCH_TPU_CACHE_ROOT="nosuchscheme://bucket/programs")
    assert found["compiled"] >= 5
    assert len(found["warnings"]) == 1
    assert "shared root" in found["warnings"][0]


def test_damage_at_the_root_is_a_miss_with_one_warning(tmp_path):
    root = tmp_path / "root"
    first = work(tmp_path / "1", TORCH_TPU_CACHE_ROOT=f"file://{root}")
    victims = entries(root)[:2]
    for victim in victims:
        victim.write_bytes(victim.read_bytes()[:-1])
    found = work(tmp_path / "2", TORCH_TPU_CACHE_ROOT=f"file://{root}")
    assert (found["compiled"], found["from_root"]) == (2, first["compiled"] - 2)
    assert len(found["warnings"]) == 1
    assert work(tmp_path / "3", TORCH_TPU_CACHE_ROOT=f"file://{root}")["compiled"] == 0


def command(*args):
    done = subprocess.run(
        [sys.executable, "-m", "torch_tpu", "cache", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_warm_pack_removes_all_compilation(filled, tmp_path):
    directory, first = filled
    pack, there = tmp_path / "programs.tar", tmp_path / "there"
    assert f"packed {first['compiled']} programs" in command("--dir", directory, "pack", pack)
    with tarfile.open(pack, "a") as tar:
        for name in ("../escaped.tpux", "0" * 32 + "-" + "0" * 16 + ".tpux", "notes.txt"):
            info = tarfile.TarInfo(name)
            info.size = 5
            tar.addfile(info, io.BytesIO(b"wrong"))
    said = command("--dir", there, "unpack", pack)
    assert f"unpacked {first['compiled']} programs" in said
    assert "3 files of the pack" in said
    assert sorted(p.name for p in there.iterdir()) == [p.name for p in entries(directory)]
    assert not (tmp_path / "escaped.tpux").exists()
    assert work(there)["compiled"] == 0
    assert f"unpacked 0 programs into {there}" in command("--dir", there, "unpack", pack)


def test_the_command_lists_and_prunes(copy):
    total = len(entries(copy))
    listed = command("--dir", copy, "list").splitlines()
    assert len(listed) == total + 1
    assert any("aten::_softmax" in line for line in listed)
    largest = max(p.stat().st_size for p in entries(copy))
    command("--dir", copy, "prune", "--to", largest / 1e6)
    assert 1 <= len(entries(copy)) < total
    assert command("--dir", copy, "clear").endswith(f"0 programs, 0 bytes, in {copy}\n")


def test_the_log_names_what_is_new(tmp_path):
    code = """
import torch
a = torch.ones(3, device="tpu") + torch.ones(3, device="tpu")
b = torch.ones(4, device="tpu") + torch.ones(4, device="tpu")
print(a.tolist(), b.tolist())
"""

    def log():
        done = run(code, TORCH_TPU_CACHE_DIR=str(tmp_path), TORCH_TPU_LOG="cache")
        return [line for line in done.stderr.splitlines() if "aten::add.Tensor" in line]

    first, second = log()
    assert "the first program of these operators" in first
    assert "the program differs" in second
    assert "tensor<3xf32>" in second
    assert "tensor<4xf32>" in second
    for entry in entries(tmp_path):  # as if another machine had made them
        entry.rename(entry.with_name(entry.name.split("-")[0] + "-" + "0" * 16 + ".tpux"))
    assert all("another machine" in line for line in log())


@pytest.mark.slow
def test_processes_killed_at_any_moment(tmp_path):
    """Four processes share a cache that is too small for all, and die without warning, 200 times."""
    limit = 1
    generator = random.Random(0)
    code = """
import itertools, sys, torch
for n in itertools.count(int(sys.argv[1])):
    x = torch.arange(float(n % 40 + 2), device="tpu")
    assert (x * 2 + 1).sum().item() == (n % 40 + 2) ** 2, n
    assert torch.tpu.cache_stats()["disk_cache"]["bytes"] < 3e6
"""
    env = os.environ | {"TORCH_TPU_CACHE_DIR": str(tmp_path), "TORCH_TPU_CACHE_MAX_MB": str(limit)}
    killed = 0
    running = []
    while killed < 200:
        while len(running) < 4:
            running.append(
                subprocess.Popen(
                    [sys.executable, "-c", code, str(generator.randrange(1000))],
                    env=env,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        time.sleep(generator.uniform(0.1, 1.5))
        victim = running.pop(generator.randrange(4))
        assert victim.poll() is None, victim.communicate()[1]
        victim.kill()
        assert victim.communicate()[1] == ""
        killed += 1
    for process in running:
        assert process.poll() is None, process.communicate()[1]
        process.kill()
        assert process.communicate()[1] == ""
    found = work(tmp_path, TORCH_TPU_CACHE_MAX_MB=str(limit))
    assert found["warnings"] == []
    assert found["bytes"] <= 1.2 * limit * 2**20
