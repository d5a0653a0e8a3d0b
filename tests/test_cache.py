# SPDX-License-Identifier: Apache-2.0 - the disk cache of compiled programs: hits, damage, races, limits.
"""Each process here has a cache folder of its own, so nothing depends on what ran before."""

import json
import os
import struct
import subprocess
import sys
import threading

import pytest

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
        list(good)[:2], (b"no program", list(good.values())[-1][64:564]), strict=True
    ):
        frame = good[victim][:40]
        assert checksum(good[victim][64:]) == struct.unpack("<QQ", good[victim][48:64])
        numbers = struct.pack("<QQQ", len(contents), *checksum(contents))
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
