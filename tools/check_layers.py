# SPDX-License-Identifier: Apache-2.0 - checks the order of the layers and the shape of source files.
"""Usage: check_layers.py [ROOT]

Prints one line `file:line: what is wrong` per finding and exits with 1 if there is any:
  - a layer of src/ includes only the layers it may see, as "src/LAYER/file.h";
  - torch only in the layers that are about torch, Python only in src/python, PJRT's C header only in
    src/pjrt, so that the rest builds and is tested without them;
  - the first line of every source file is the licence tag and one sentence of purpose;
  - headers say `#pragma once`; no folder is called common or utils.
"""

import re
import sys
from pathlib import Path

# Each layer and the layers it may include besides itself.
LAYERS = {
    "hlo": set(),
    "pjrt": {"hlo"},
    "graph": {"hlo", "pjrt"},
    "run": {"hlo", "pjrt", "graph"},
    "ops": {"hlo", "graph"},
    "tensor": {"hlo", "pjrt", "graph", "run", "ops"},
    "device": {"hlo", "pjrt", "graph", "run", "ops", "tensor"},
    "dist": {"hlo", "pjrt", "graph", "run", "ops", "tensor", "device"},
    "python": {"hlo", "pjrt", "graph", "run", "ops", "tensor", "device", "dist"},
}
# Headers from outside, and the layers that may include them. The first pattern that matches counts.
OUTSIDE = (
    (
        r"(Python\.h|pybind11/|torch/extension\.h|torch/python\.h|torch/csrc/(utils/|python|Exceptions|THP|Dtype))",
        {"python"},
        "Python",
    ),
    (r"(torch|ATen|c10|caffe2)/", {"tensor", "device", "dist", "python"}, "torch"),
    (r"(third_party/openxla/)?pjrt_c_api\.h$", {"pjrt"}, "the PJRT C API"),
)
TAG = re.compile(r"(//|#|<!--) SPDX-License-Identifier: Apache-2\.0 - \S+ \S+")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = {".cpp", ".h", ".py"}
FOLDERS = ("src", "torch_tpu", "tests", "tools", "examples", "benchmarks")
OTHERS = ("CMakeLists.txt", "Makefile", "pyproject.toml", ".ci/run")


def main(root: Path) -> int:
    findings = []
    files = [root / name for name in OTHERS if (root / name).exists()]
    for folder in FOLDERS:
        files += sorted(p for p in (root / folder).rglob("*") if p.suffix in SOURCES)
    files = [p for p in files if "__pycache__" not in p.parts and p.name != "_build_info.py"]
    for path in files:
        name = path.relative_to(root)
        text = path.read_text(errors="replace").splitlines()
        findings += [f"{name}:{line}: {what}" for line, what in check_file(name, text)]
    for line in findings:
        print(line)
    print(f"{len(files)} files, {len(findings)} findings")
    return int(bool(findings))


def check_file(name: Path, text: list[str]):
    """Yields (line number, what is wrong)."""
    for part in name.parts[:-1]:
        if part in ("common", "utils"):
            yield 1, f"a folder called {part}: put a helper beside its first user"
    first = 1 if text and text[0].startswith("#!") else 0
    if len(text) <= first or not TAG.match(text[first]):
        yield (
            first + 1,
            "the first line must be 'SPDX-License-Identifier: Apache-2.0 - one sentence of purpose'",
        )
    if name.suffix == ".h" and "#pragma once" not in text:
        yield 1, "a header without #pragma once"
    if name.suffix in (".cpp", ".h") and name.parts[0] == "src":
        yield from check_includes(name, text)


def check_includes(name: Path, text: list[str]):
    layer = name.parts[1] if len(name.parts) > 2 else None
    if layer not in LAYERS:
        yield 1, f"not in a known layer; the layers are {', '.join(LAYERS)}"
        return
    for number, line in enumerate(text, 1):
        found = INCLUDE.match(line)
        if not found:
            continue
        quote, target = found.groups()
        for pattern, allowed, what in OUTSIDE:
            if re.match(pattern, target):
                if layer not in allowed:
                    yield (
                        number,
                        f"src/{layer} may not see {what} ({target}); only {listed(allowed)} may",
                    )
                break
        else:
            parts = target.split("/")
            if parts[0] == "src":
                yield from check_layer(number, layer, parts[1])
            elif quote == '"':
                yield number, f'write own headers as "src/LAYER/file.h", not "{target}"'


def check_layer(number: int, layer: str, other: str):
    if other != layer and other not in LAYERS[layer]:
        may = listed(LAYERS[layer]) or "no other layer"
        yield number, f"src/{layer} may not include src/{other}; it sees {may}"


def listed(layers: set[str]) -> str:
    return ", ".join(f"src/{name}" for name in LAYERS if name in layers)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent))
