# SPDX-License-Identifier: Apache-2.0 - what importing, autoloading and the repository's tools promise.
"""Imports are tested in fresh processes: what counts is which of the two packages comes first."""

import ast
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs code in a new interpreter, away from the source tree."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "PYTHON"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env | environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
    )


def value(code: str, **environment: str):
    """What the code prints, as a Python value. Nothing may appear on stderr."""
    done = python(code, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return ast.literal_eval(done.stdout)


STATE = """
import os, sys
print([str(torch.device("tpu", 0)), torch.tpu is sys.modules["torch.tpu"], torch.tpu.is_initialized(),
       hasattr(torch.Tensor, "tpu"), torch.accelerator.current_accelerator().type,
       os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")])
"""
READY = ["tpu:0", True, False, True, "tpu", None]


@pytest.mark.parametrize(
    "first",
    [
        "import torch",
        "import torch_tpu, torch",
        "import torch, torch_tpu",
        "import torch_tpu._loader, torch",
    ],
)
def test_device_is_there_whatever_comes_first(first):
    assert value(first + STATE) == READY


def test_without_autoload_an_import_does_it():
    code = """
import torch
before = hasattr(torch, "tpu")
import torch_tpu
print([before, hasattr(torch, "tpu")])
"""
    assert value(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == [False, True]


def test_load_may_be_called_again_and_by_many_threads():
    code = """
import threading
from concurrent.futures import ThreadPoolExecutor
start = threading.Barrier(8)
def work(_):
    start.wait()
    from torch_tpu._loader import load
    load()
    load()
    import torch
    return str(torch.device("tpu"))
with ThreadPoolExecutor(8) as pool:
    print(set(pool.map(work, range(8))))
"""
    assert value(code) == {"tpu"}


def test_import_stays_off_the_network_and_loads_no_plugin():
    code = """
import sys
seen = []
def hook(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind"):
        seen.append(event)
sys.addaudithook(hook)
import torch
mapped = {line.split()[-1].rsplit("/", 1)[-1] for line in open("/proc/self/maps") if ".so" in line}
plugins = {"libpjrt_cpu.so", "pjrt_c_api_cpu_plugin.so", "xla_cpu_pjrt.so", "libtpu.so"}
packages = {"libtpu", "fastatomstruct_xla_cpu", "lammps_jax_pjrt_cpu", "jax"}
print([seen, sorted(mapped & plugins), sorted(packages & set(sys.modules))])
"""
    assert value(code) == [[], [], []]


def test_children_inherit_the_device():
    code = """
import torch, subprocess, sys
print(subprocess.run([sys.executable, "-c", "import torch; print([str(torch.device('tpu'))])"],
                     capture_output=True, text=True, check=True).stdout)
"""
    assert value(code) == ["tpu"]


def test_entry_point_and_version():
    import torch_tpu

    (entry,) = (e for e in metadata.entry_points(group="torch.backends") if e.name == "torch_tpu")
    assert entry.value == "torch_tpu._loader:load"
    assert metadata.version("torch_tpu") == torch_tpu.__version__


# A copy of the Python part with another compiled part, or none.
def copy_of_package(folder: Path, build_info: str | None) -> str:
    package = folder / "torch_tpu"
    package.mkdir()
    for name in ("__init__.py", "_loader.py", "_plugins.py"):
        (package / name).write_text((ROOT / "torch_tpu" / name).read_text())
    if build_info is not None:
        (package / "_build_info.py").write_text(build_info)
    # -S -E would lose torch; putting the copy first and dropping the editable finder is enough.
    return f"""
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in (type(f).__module__ + type(f).__name__).lower()]
sys.path.insert(0, {str(folder)!r})
import torch
try:
    import torch_tpu
except ImportError as error:
    print([str(error)])
else:
    print([torch_tpu.__file__])
"""


@pytest.mark.parametrize(
    ("build_info", "words"),
    [
        (None, ["compiled part is not", "make build"]),
        (
            "TORCH_VERSION = '2.9.1'",
            ["compiled for torch 2.9", "this is torch", "Install torch 2.9"],
        ),
        (
            "import torch; TORCH_VERSION = torch.__version__",
            ["no compiled part for Python", "make clean build"],
        ),
    ],
)
def test_a_broken_install_says_what_to_do(tmp_path, build_info, words):
    (message,) = value(copy_of_package(tmp_path, build_info), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert [word for word in words if word not in message] == []


def test_plugin_folders_are_found_without_importing_the_packages(tmp_path):
    for package in ("libtpu", "xla_plugins"):
        (tmp_path / package).mkdir()
    (tmp_path / "libtpu/__init__.py").write_text("raise SystemExit('imported')")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from torch_tpu import _plugins
print(_plugins.search_paths())
"""
    found = value(code)
    # libtpu comes first, xla_plugins (a namespace package, maybe in several places) adds no repeat.
    assert found[0] == str(tmp_path)
    assert len(found) == len(set(found))


# ---- Tools ----
def tool(name: str, *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "tools" / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


TAG = "// SPDX-License-Identifier: Apache-2.0 - a file to check.\n"


@pytest.mark.parametrize(
    ("path", "text", "finding"),
    [
        ("src/hlo/a.cpp", TAG + '#include "src/hlo/b.h"\n#include <vector>\n', None),
        ("src/tensor/a.cpp", TAG + "#include <ATen/ATen.h>\n", None),
        ("src/python/a.cpp", TAG + "#include <torch/csrc/utils/pybind.h>\n", None),
        ("src/pjrt/a.cpp", TAG + '#include "third_party/openxla/pjrt_c_api.h"\n', None),
        (
            "src/graph/a.cpp",
            TAG + '#include "src/run/b.h"\n',
            "src/graph/a.cpp:2: src/graph may not include src/run",
        ),
        ("src/ops/a.cpp", TAG + '#include "src/pjrt/b.h"\n', "src/ops may not include src/pjrt"),
        ("src/ops/a.cpp", TAG + "#include <ATen/ATen.h>\n", "may not see torch"),
        ("src/run/a.cpp", TAG + "#include <c10/util/Exception.h>\n", "may not see torch"),
        ("src/tensor/a.cpp", TAG + "#include <pybind11/pybind11.h>\n", "may not see Python"),
        ("src/device/a.cpp", TAG + "#include <Python.h>\n", "may not see Python"),
        (
            "src/run/a.cpp",
            TAG + '#include "third_party/openxla/pjrt_c_api.h"\n',
            "may not see the PJRT C API",
        ),
        (
            "src/run/a.cpp",
            TAG + '#include "graph/b.h"\n',
            'write own headers as "src/LAYER/file.h"',
        ),
        ("src/other/a.cpp", TAG, "not in a known layer"),
        ("src/hlo/a.h", TAG, "#pragma once"),
        ("src/hlo/utils/a.cpp", TAG, "a folder called utils"),
        ("src/hlo/a.cpp", "int a;\n", "SPDX"),
        ("torch_tpu/a.py", '"""No tag."""\n', "SPDX"),
    ],
)
def test_layer_check(tmp_path, path, text, finding):
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text)
    done = tool("check_layers.py", tmp_path)
    assert done.returncode == (0 if finding is None else 1)
    if finding is not None:
        assert finding in done.stdout


def where(tmp_path, name: str) -> str:
    (tmp_path / "src/ops").mkdir(parents=True)
    (tmp_path / "src/ops/family.cpp").write_text(
        '// first line\nTPU_OP(\n    "aten::add.Tensor(Tensor self, Tensor other) -> Tensor") {\n}\n'
        '#define UNARY(name) \\\n  TPU_OP_FN("aten::" #name "(Tensor self) -> Tensor", Pointwise, name)\n'
        "UNARY(sin)\n"
    )
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); import where; from pathlib import Path\n"
    code += f"sys.exit(where.main({name!r}, Path({str(tmp_path)!r})))"
    done = python(code)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("add", "src/ops/family.cpp:2: add.Tensor(Tensor self"),
        ("aten::add_.Tensor", "src/ops/family.cpp:2: add.Tensor(Tensor self"),
        ("_foreach_add", "src/ops/family.cpp:2: add.Tensor(Tensor self"),
        ("sin", "src/ops/family.cpp:7: UNARY(sin)"),
        ("silu", "torch._decomp, "),
        ("instance_norm", "composite kernel"),
        ("no_such_op", "has no operator"),
    ],
)
def test_where(tmp_path, name, answer):
    assert answer in where(tmp_path, name)
