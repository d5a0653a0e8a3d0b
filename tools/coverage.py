# SPDX-License-Identifier: Apache-2.0 - counts the operators that PyTorch implements for CUDA and that the device has.
"""Usage: coverage.py [--all] [--json FILE]

Goes over PyTorch's native_functions.yaml. An overload counts when CUDA runs it on dense tensors: it has a kernel
for CUDA, or is composed of others, and belongs to no vendor library (cuDNN, MIOpen, MKL-DNN ...) and to no other
layout (sparse, nested, quantized). The device has it when

- an entry, or a kernel derived from an entry, is registered for it;
- PyTorch's Python decomposition is, and there is one;
- PyTorch composes it in C++ (CompositeImplicitAutograd, CompositeExplicitAutograd).

Prints the share and what is missing; --all prints how each overload is reached.
"""

import argparse
import collections
import json
import re
from pathlib import Path

import torch
import torchgen
from torchgen.gen import parse_native_yaml
from torchgen.model import DispatchKey

# Libraries and layouts that a dense tensor on this device never meets. "fake_quantize" is dense.
_OTHERS = re.compile(
    r"cudnn|miopen|mkldnn|mkl_|_mkl|mps|vulkan|xnnpack|fbgemm|metal|nnpack|cufft|cusparselt|cutlass|hipblas"
    r"|sparse|coalesce|csr|csc|bsr|bsc|nested|to_padded_tensor|jagged_dummy|_nnz|dense_dim|ccol_indices"
    r"|quantized|quantize_per|dequantize|q_scale|q_zero_point|q_per_channel|qscheme|int_repr|make_per_channel"
    r"|make_per_tensor|sspaddmm|_values_copy|_indices_copy|_triton_|record_stream|_cslt_|crow_indices|^(aten::)?(values|indices|col_indices|row_indices)"
)
_FAKE = re.compile(r"fake_quant")
_COMPOSITE = (
    DispatchKey.CompositeImplicitAutograd,
    DispatchKey.CompositeExplicitAutograd,
    DispatchKey.CompositeExplicitAutogradNonFunctional,
)
_MISSING = "missing"


def cuda_overloads():
    """{"name.overload": structured?} of native_functions.yaml's overloads that run on dense CUDA tensors."""
    folder = Path(torchgen.__file__).parent / "packaged/ATen/native"
    parsed = parse_native_yaml(folder / "native_functions.yaml", folder / "tags.yaml")
    functions = {f.func.name: f for f in parsed.native_functions}

    def has(f, key):
        index = parsed.backend_indices.get(key)
        return index is not None and index.has_kernel(f)

    found = {}
    for f in parsed.native_functions:
        if "generated" in f.tags:
            continue  # made by a script from the overloads that count
        name = str(f.func.name)
        if _OTHERS.search(name) and not _FAKE.search(name):
            continue
        home = functions[f.structured_delegate] if f.structured_delegate else f
        if has(home, DispatchKey.CUDA) or any(has(home, key) for key in _COMPOSITE):
            found[name] = f.structured_delegate is not None
    return found


def reached(name: str, structured: bool, rows: dict[str, str]) -> str:
    """How the device comes to this overload, or "missing"."""
    from torch_tpu import _decompositions

    full = f"aten::{name}"
    query = torch._C._dispatch_has_kernel_for_dispatch_key
    how = rows.get(full)
    if how in ("entry", "derived"):
        return how
    if how == "decomposition":
        functional = functional_name(name)
        return how if _decompositions.find(f"aten::{functional}") else _MISSING
    if query(full, "PrivateUse1"):
        return "kernel"
    # The functional form of a structured operator has such a kernel as well: it calls out=, which is ours to have.
    composed = [*_COMPOSITE[:2], *(() if structured else _COMPOSITE[2:])]
    return "composite" if any(query(full, key.name) for key in composed) else _MISSING


def functional_name(name: str) -> str:
    """add_.Tensor and add.out belong to add.Tensor; the decomposition is looked up under that name."""
    packet, _, overload = name.partition(".")
    schema = getattr(getattr(torch.ops.aten, packet), overload or "default")._schema
    if not schema.is_mutable:
        return name
    outs = {a.name for a in schema.arguments if a.is_out}
    wanted = [(a.name, str(a.type)) for a in schema.arguments if a.name not in outs]
    base = packet[:-1] if packet.endswith("_") and not outs else packet
    base = {"__ilshift_": "__lshift__", "__irshift_": "__rshift__"}.get(base, base)
    operators = getattr(torch.ops.aten, base, None)
    for other in operators.overloads() if operators else ():
        candidate = getattr(operators, other)._schema
        arguments = [(a.name, str(a.type)) for a in candidate.arguments]
        if not candidate.is_mutable and arguments == wanted:
            return base if other == "default" else f"{base}.{other}"
    return name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("--all", action="store_true", help="print how each overload is reached")
    parser.add_argument("--json", type=Path, help="write {overload: how} to this file")
    options = parser.parse_args()

    from torch_tpu import _C

    rows = {op: how for op, how, _ in _C._operator_rows()}
    how = {name: reached(name, s, rows) for name, s in cuda_overloads().items()}
    if options.json:
        options.json.write_text(json.dumps(how, indent=1) + "\n")
    for name, way in sorted(how.items()):
        if options.all or way == _MISSING:
            print(f"{way:14}{name}")
    counts = collections.Counter(how.values())
    have = len(how) - counts[_MISSING]
    print(f"{have} of {len(how)} overloads ({100 * have / len(how):.2f} %)", dict(counts))
    # Where CUDA has a kernel of its own, not counting what is composed on every device.
    own = [n for n, way in how.items() if way != "composite"]
    own_have = sum(how[n] != _MISSING for n in own)
    print(
        f"{own_have} of {len(own)} without those that PyTorch composes ({100 * own_have / len(own):.2f} %)"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
