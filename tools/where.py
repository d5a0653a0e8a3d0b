# SPDX-License-Identifier: Apache-2.0 - says where an operator is defined, or how it is reached.
"""Usage: where.py OP     (gelu, aten::gelu, add_.Tensor, _foreach_mul, ...)

Prints `file:line: schema` for each entry of the operator table. In-place, out= and foreach forms
have no entry of their own: they follow from the functional one. An operator without an entry goes
through a decomposition of PyTorch, and its place is printed instead.
"""

import inspect
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(wanted: str, root: Path = ROOT) -> int:
    name = wanted.strip().removeprefix("aten::").split(".")[0]
    if not re.fullmatch(r"\w+", name):
        print("which operator? For example: make where OP=gelu", file=sys.stderr)
        return 2
    for form in forms(name):
        found = entries(root, form)
        for line in found:
            print(line)
        if found:
            if form != name:
                print(f"({name} follows from {form})")
            return 0
    found = registrations(root, name)
    for line in found:
        print(line)
    if found:
        return 0
    return decomposition(name)


def forms(name: str):
    """The name itself, and the functional operator that it is a form of."""
    yield name
    base = name.removeprefix("_foreach_").removesuffix("_out")
    if base.endswith("_") and not base.endswith("__"):
        base = base[:-1]
    if base != name:
        yield base


def entries(root: Path, name: str) -> list[str]:
    """Entries of the table: written out, or made by a macro of a family, `UNARY(sin)`."""
    found = []
    schema = re.compile(rf'\bTPU_\w+\(\s*"aten::({name}[.(][^"]*)"')
    for path in sorted((root / "src/ops").glob("*.cpp")):
        text = path.read_text(errors="replace")
        hits = [(hit.start(), hit.group(1)) for hit in schema.finditer(text)]
        # A #define may go on over lines that end in a backslash.
        for macro, body in re.findall(r"^#define (\w+)\(((?:.*\\\n)*.*)", text, re.MULTILINE):
            if "TPU_" in body and "aten::" in body:
                uses = re.finditer(rf"^{macro}\(\s*{name}\b[^\n]*", text, re.MULTILINE)
                hits += [(use.start(), use.group()) for use in uses]
        for start, what in sorted(hits):
            number = text.count("\n", 0, start) + 1
            found.append(f"{path.relative_to(root)}:{number}: {what}")
    return found


def registrations(root: Path, name: str) -> list[str]:
    """Kernels registered by hand (views, copies, factories), and the CPU fallbacks."""
    found = []
    pattern = re.compile(rf'"(aten::)?{name}(\.\w+)?"')
    paths = [
        *sorted((root / "src/tensor").glob("*.cpp")),
        *sorted((root / "src/device").glob("*.cpp")),
        root / "src/ops/fallback.cpp",
    ]
    for path in paths:
        if path.name.endswith("_test.cpp") or not path.exists():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    return found


def decomposition(name: str) -> int:
    # The question is about PyTorch alone, and must have an answer when the extension isn't built.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch
    import torch._decomp
    import torch._refs

    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        print(f"PyTorch {torch.__version__} has no operator aten::{name}")
        return 1
    for overload in packet.overloads():
        op = getattr(packet, overload)
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
            print(f"aten::{name}: PyTorch's own composite kernel in C++ (at::native::{name})")
            return 0
        function = torch._decomp.decomposition_table.get(op)
        if function is not None:
            print(f"aten::{name}: torch._decomp, {place(function)}")
            return 0
    function = getattr(torch._refs, name, None)
    if callable(function):
        print(f"aten::{name}: torch._refs, {place(function)}")
        return 0
    for overload in packet.overloads():
        op = getattr(packet, overload).name()
        for key in ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"):
            if torch._C._dispatch_has_kernel_for_dispatch_key(op, key):
                print(f"aten::{name}: PyTorch's own composite kernel in C++ ({key})")
                return 0
    print(
        f"aten::{name}: no entry and no decomposition. It raises NotImplementedError, or runs on the CPU "
        "with TORCH_TPU_CPU_FALLBACK=1"
    )
    return 1


def place(function) -> str:
    function = inspect.unwrap(function)
    return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
