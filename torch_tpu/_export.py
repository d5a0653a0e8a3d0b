# SPDX-License-Identifier: Apache-2.0 - export: a module as StableHLO with its weights apart, in one file that runs without it.
"""The file is a zip archive (nothing in it is pickled):

meta.json             the signature: names, shapes, dtypes and tree of inputs and outputs
program.cpu.mlir      the program as XLA's CPU plugin gets it
program.tpu.mlir      the program as a TPU gets it
weights.safetensors   parameters, buffers and constants; tied ones once
"""

import json
import os
import struct
import types
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from torch_tpu import _C, _graph

FORMAT = "torch_tpu exported program"
VERSION = 1
PLATFORMS = ("cpu", "tpu")

# safetensors' names of dtypes.
_TYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.complex128: "C128",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_DTYPES = {name: dtype for dtype, name in _TYPES.items()}


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"an exported program speaks of a dtype '{name}' that torch has not")
    return found


# ---- trees -----------------------------------------------------------------------------------
def _tree(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """A nest of lists, tuples and mappings as JSON. Other containers become what they resemble."""
    if isinstance(value, Mapping):
        return {"dict": [[key, _tree(v, leaf)] for key, v in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_tree(v, leaf) for v in value]}
    if isinstance(value, list):
        return {"list": [_tree(v, leaf) for v in value]}
    return leaf(value)


def _untree(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    if "dict" in tree:
        return {key: _untree(v, leaf) for key, v in tree["dict"]}
    if "tuple" in tree:
        return tuple(_untree(v, leaf) for v in tree["tuple"])
    if "list" in tree:
        return [_untree(v, leaf) for v in tree["list"]]
    return leaf(tree)


def _constant(value: Any, what: str) -> dict:
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"constant": value}
    raise TypeError(f"export: {what} is a {type(value).__name__}; it can be a tensor or a number")


# ---- weights ---------------------------------------------------------------------------------
def _pack_weights(weights: Mapping[str, torch.Tensor]) -> bytes:
    """The safetensors format: the header's length, a header in JSON, and the bytes."""
    header, parts, offset = {}, [], 0
    for key, tensor in weights.items():
        if tensor.dtype not in _TYPES:
            raise TypeError(f"export: the weight '{key}' is {tensor.dtype}, which cannot be saved")
        dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        data = dense.reshape(-1).view(torch.uint8).numpy().tobytes()
        header[key] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *parts])


def _unpack_weights(data: bytes) -> dict[str, torch.Tensor]:
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    body = memoryview(data)[8 + length :]
    out = {}
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
        if begin == end:
            out[key] = torch.empty(shape, dtype=dtype, device="tpu")
            continue
        flat = torch.frombuffer(bytearray(body[begin:end]), dtype=torch.uint8)
        out[key] = flat.view(dtype).reshape(shape).to("tpu")
    return out


def _identity(tensor: torch.Tensor) -> tuple:
    """Equal for tensors that are the same elements of the same storage."""
    if tensor.numel() == 0:
        return (id(tensor),)
    return (
        tensor.device,
        tensor.untyped_storage().data_ptr(),
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
    )


# ---- the program -----------------------------------------------------------------------------
class ExportedProgram:
    """A program that `torch_tpu.export` made or `torch_tpu.load_exported` read.

    Called like the module that it was made of, with tensors on "tpu" of the shapes and dtypes that
    it was exported with; gives new tensors on "tpu", which carry no gradients, in the same
    structure (of tuples, lists and dictionaries). Buffers that the module updates are updated.

    Raises TypeError for other arguments than it was exported with (their number, structure, kind,
    dtype, or a number of another value), ValueError for other shapes or devices.
    """

    def __init__(self, meta: dict, texts: dict[str, str], weights: dict[str, torch.Tensor]):
        """meta: the contents of meta.json. texts: by platform. weights: by key, on any device."""
        self._meta, self._texts, self._stored = meta, texts, weights
        self._graph: _C.CompiledGraph | None = None
        self._device: dict[str, torch.Tensor] | None = None

    def __repr__(self) -> str:
        inputs = ", ".join(
            f"{i['name']}: {i['dtype']}{i['shape']}" for i in self._meta["inputs"] if "shape" in i
        )
        return f"ExportedProgram({inputs}; {len(self._stored)} weights)"

    @property
    def inputs(self) -> list[dict]:
        """Name, shape and dtype of each tensor that it takes, in the order of the arguments' tree."""
        return [dict(i) for i in self._meta["inputs"] if "shape" in i]

    @property
    def outputs(self) -> list[dict]:
        """Shape and dtype of each tensor that it gives, in the order of the result's tree."""
        return [
            {"shape": list(shape), "dtype": dtype}
            for (dtype, shape), use in zip(
                self._meta["programs"]["cpu"]["results"], self._meta["uses"], strict=False
            )
            if use[0] == "output"
        ]

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The parameters, buffers and constants on the device, by name; tied ones are one tensor."""
        on_device = self._on_device()
        return {name: on_device[key] for name, key in self._meta["weights"].items()}

    def text(self, platform: str = "tpu") -> str:
        """The StableHLO module for "cpu" (XLA's CPU plugin) or "tpu"."""
        if platform not in PLATFORMS:
            raise ValueError(f"text: a platform is 'cpu' or 'tpu', got {platform!r}")
        return self._texts[platform]

    def save(self, path: str | os.PathLike) -> None:
        """Writes the file, whole or not at all."""
        path = Path(path)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with zipfile.ZipFile(part, "w") as file:
                file.writestr("meta.json", json.dumps(self._meta, indent=1))
                for platform in PLATFORMS:
                    file.writestr(
                        f"program.{platform}.mlir",
                        self._texts[platform],
                        compress_type=zipfile.ZIP_DEFLATED,
                    )
                weights = self._stored if self._device is None else self._device
                file.writestr("weights.safetensors", _pack_weights(weights))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad(), _graph._below_autograd():
            given = self._check(args, kwargs)
            weights = self._on_device()
            tensors = [
                weights[where] if kind == "weight" else given[where]
                for kind, where in self._meta["arguments"]
            ]
            if self._graph is None:
                self._graph = self._make()
            results = self._graph(list(tensors))
            outputs = []
            for result, (use, where) in zip(results, self._meta["uses"], strict=True):
                if use == "output":
                    outputs.append(result)
                else:
                    (weights if use == "weight" else given)[where].copy_(result)
        return _untree(
            self._meta["output_tree"],
            lambda leaf: outputs[leaf["tensor"]] if "tensor" in leaf else leaf["constant"],
        )

    def _on_device(self) -> dict[str, torch.Tensor]:
        if self._device is None:
            self._device = {
                key: t.detach().to("tpu", copy=True)
                if t.device.type == "tpu"
                else t.detach().to("tpu")
                for key, t in self._stored.items()
            }
            self._stored = self._device
        return self._device

    def _make(self) -> _C.CompiledGraph:
        forms = {}
        for platform, form in self._meta["programs"].items():
            results = [(_dtype(dtype), shape) for dtype, shape in form["results"]]
            forms[platform] = {**form, "module": self._texts[platform], "results": results}
        return _C._graph_of_text(self._meta["name"], forms)

    def _check(self, args: tuple, kwargs: dict) -> list[Any]:
        """The leaves of the call, in order."""
        names = [key for key, _ in self._meta["input_tree"]["tuple"][1]["dict"]]
        if set(names) == set(kwargs):
            kwargs = {name: kwargs[name] for name in names}
        leaves: list[Any] = []

        def leaf(value: Any) -> str:
            leaves.append(value)
            return "*"

        def shape_of(tree: Any) -> Any:
            return _tree(_untree(tree, lambda _: None), lambda _: "*")

        got, expected = _tree((args, kwargs), leaf), shape_of(self._meta["input_tree"])
        if got != expected:
            count = len(expected["tuple"][0]["tuple"])
            raise TypeError(
                f"{self._meta['name']}: takes {count} positional arguments and the keywords "
                f"{names or 'none'} in the structure that it was exported with, got {len(args)} and "
                f"{list(kwargs) or 'none'}"
                + (
                    ""
                    if len(args) != count or set(names) != set(kwargs)
                    else " with something else inside of them"
                )
            )
        for value, spec in zip(leaves, self._meta["inputs"], strict=True):
            self._check_input(value, spec)
        return leaves

    def _check_input(self, value: Any, spec: dict) -> None:
        what = f"{self._meta['name']}: argument '{spec['name']}'"
        if "constant" in spec:
            wanted = spec["constant"]
            if type(value) is not type(wanted) or value != wanted:
                raise TypeError(
                    f"{what} was {wanted!r} when the program was exported and is part of it, got "
                    f"{value!r}"
                )
            return
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{what} is a tensor, got a {type(value).__name__}")
        if _dtype_name(value.dtype) != spec["dtype"]:
            raise TypeError(
                f"{what} is {spec['dtype']}, got {_dtype_name(value.dtype)}; convert it with "
                f".to(torch.{spec['dtype']})"
            )
        if list(value.shape) != spec["shape"]:
            raise ValueError(
                f"{what} has shape {tuple(spec['shape'])}, got {tuple(value.shape)}; a program is "
                "for the shapes that it was exported with"
            )
        if value.device.type != "tpu":
            raise ValueError(f"{what} is on {value.device}; move it with .to('tpu')")


def _wrap(function: Callable) -> torch.nn.Module:
    # torch.export keeps the lines of functions called forward only.
    if isinstance(function, types.FunctionType):
        code = function.__code__.replace(co_name="forward")
        renamed = types.FunctionType(
            code, function.__globals__, "forward", function.__defaults__, function.__closure__
        )
        renamed.__kwdefaults__ = function.__kwdefaults__
        function = renamed

    class Function(torch.nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    return Function()


def _user_line(error: BaseException) -> str:
    """Where in the user's code it came up, or nothing."""
    home = str(Path(torch.__file__).parent)
    here = str(Path(__file__).parent)
    found, at = "", error.__traceback__
    while at is not None:
        name = at.tb_frame.f_code.co_filename
        if not name.startswith((home, here, "<")):
            found = f"{name}:{at.tb_lineno}"
        at = at.tb_next
    return found


def _cannot(name: str, op: str, line: str, why: str) -> NotImplementedError:
    at = f" at {line}" if line else ""
    return NotImplementedError(f"export: {name}: {op}{at} cannot be part of one program: {why}")


def _op_name(node: torch.fx.Node) -> str:
    return str(node.target).removesuffix(".default")


def _table() -> Any:
    """PyTorch's decompositions of what the operator table has no entry for."""
    ours = {name for name, how, _ in _C._operator_rows() if how in ("entry", "derived")}
    table = torch.export.default_decompositions()
    for op in list(table):
        if op.name() in ours:
            table.pop(op)
    return table


def _capture(name: str, module: torch.nn.Module, args: tuple, kwargs: dict) -> Any:
    try:
        return torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:
        line = _user_line(error)
        if line and "data-dependent" in str(error).lower():
            raise _cannot(
                name, "a decision", line, "it depends on the values of a tensor"
            ) from error
        raise


def _check_graph(name: str, module: torch.fx.GraphModule) -> None:
    for node in module.graph.nodes:
        if node.op != "call_function" or _graph._fits(node):
            continue
        if any(_graph._has_unknown_size(t) for t in _graph._tensors(node)):
            why = "the size of its result depends on the values of a tensor"
        elif node.target in (
            torch.ops.aten.item.default,
            torch.ops.aten._local_scalar_dense.default,
        ):
            why = "it brings the value of a tensor to the host"
        else:
            why = "it is not an operator of PyTorch's on this device"
        raise _cannot(name, _op_name(node), _graph._line(node), why)


def export(
    module_or_fn: torch.nn.Module | Callable,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    path: str | os.PathLike | None = None,
) -> ExportedProgram:
    """A module or function as one StableHLO program with its weights apart.

    args, kwargs: example arguments, on any device; tensors of any shape and dtype, in any nest of
    lists, tuples and dictionaries. Their shapes and dtypes, and the values of what is not a tensor,
    become part of the program. path: where to save it at once (`ExportedProgram.save` does that
    later); `torch_tpu.load_exported(path)` runs it in a process that knows nothing of the module.

    The program is written twice, for XLA's CPU plugin and for TPUs; the one for the platform at hand
    is taken when it is called. Dropout and other random numbers of a module in training mode come
    from the device's default generator, as in eager mode.

    Raises NotImplementedError, with the operator and the line, for what cannot be one program (sizes
    or decisions that depend on the values of tensors, operators of other libraries); TypeError for
    arguments and results that are neither tensors nor numbers nor None; what torch.export raises.
    """
    module = module_or_fn if isinstance(module_or_fn, torch.nn.Module) else _wrap(module_or_fn)
    name = getattr(module_or_fn, "__name__", None) or type(module_or_fn).__name__
    if not name.isidentifier():
        name = "function"
    if isinstance(args, torch.Tensor):
        raise TypeError("export: args is a tuple of arguments, got a tensor; write (x,)")
    program = _capture(name, module, tuple(args), dict(kwargs or {}))
    originals = {**program.state_dict, **program.constants}
    # The names that torch.export gives are those of the module; what is tied there is one weight.
    keys: dict[tuple, str] = {}
    weights: dict[str, torch.Tensor] = {}
    names: dict[str, str] = {}
    for weight_name, tensor in originals.items():
        if isinstance(tensor, torch.Tensor):
            key = keys.setdefault(_identity(tensor), weight_name)
            weights.setdefault(key, tensor.detach())
            names[weight_name] = key
    if any(t.device.type != "tpu" for n in program.graph.nodes for t in _graph._tensors(n)):
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, "tpu:0")
    with warnings.catch_warnings():
        # PyTorch copies its own LeafSpecs here, and warns of their use.
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        program = program.run_decompositions(_table())
    _check_graph(name, program.graph_module)
    for extra, tensor in program.constants.items():  # that came with decompositions
        if isinstance(tensor, torch.Tensor) and extra not in names:
            names[extra] = extra
            weights[extra] = tensor.detach()

    signature = program.graph_signature
    arguments: list[list] = []  # of the graph: a weight's key or the index of a leaf
    tensors, placeholders, inputs = [], [], []
    leaf_of: dict[str, int] = {}
    nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
    for node, spec in zip(nodes, signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, ConstantArgument):
            inputs.append({"name": spec.arg.name, **_constant(spec.arg.value, spec.arg.name)})
            placeholders.append(spec.arg.value)
            continue
        if not isinstance(spec.arg, TensorArgument):
            raise TypeError(
                f"export: {name}: the input '{spec.arg.name}' is neither a tensor nor a number"
            )
        value = node.meta["val"]
        placeholders.append(node)
        tensors.append((value.dtype, list(value.shape)))
        if spec.kind is InputKind.USER_INPUT:
            leaf_of[spec.arg.name] = len(inputs)
            arguments.append(["input", len(inputs)])
            inputs.append(
                {
                    "name": spec.arg.name,
                    "dtype": _dtype_name(value.dtype),
                    "shape": list(value.shape),
                }
            )
        else:
            arguments.append(["weight", names[spec.target]])

    uses: list[list] = []
    leaves: list[dict] = []
    count = 0
    for spec in signature.output_specs:
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            uses.append(["weight", names[spec.target]])
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            uses.append(["input", leaf_of[spec.target]])
        elif isinstance(spec.arg, TensorArgument):
            uses.append(["output", count])
            leaves.append({"tensor": count})
            count += 1
        elif isinstance(spec.arg, ConstantArgument):
            leaves.append(_constant(spec.arg.value, "an output"))
        else:
            raise TypeError(f"export: {name}: the output '{spec.arg.name}' is not a tensor")

    def body(values: list, _: list) -> list:
        given = iter(values)
        values = [next(given) if isinstance(p, torch.fx.Node) else p for p in placeholders]
        with _graph._below_autograd():
            out = _graph._Outputs(program.graph_module)(values)
        return [pair for pair in out if isinstance(pair[0], torch.Tensor)]

    forms = {}
    try:
        for platform in PLATFORMS:
            forms[platform] = _C._write_graph(name, body, tensors, platform)
    except _graph._NodeFailed as failure:
        raise _cannot(
            name, _op_name(failure.node), _graph._line(failure.node), str(failure.__cause__)
        ) from failure
    texts = {platform: form.pop("module") for platform, form in forms.items()}
    for form in forms.values():
        form["results"] = [[_dtype_name(dtype), shape] for dtype, shape in form["results"]]
    in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec
    numbers = iter(range(len(inputs)))
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "torch": torch.__version__,
        "name": name,
        "inputs": inputs,
        "input_tree": _tree(
            pytree.tree_unflatten([next(numbers) for _ in inputs], in_spec), lambda i: {"leaf": i}
        ),
        "output_tree": _tree(
            pytree.tree_unflatten(range(len(leaves)), out_spec), lambda i: leaves[i]
        ),
        "arguments": arguments,
        "uses": uses,
        "weights": names,
        "programs": forms,
    }
    out = ExportedProgram(json.loads(json.dumps(meta)), texts, weights)
    if path is not None:
        out.save(path)
    return out


def load_exported(path: str | os.PathLike) -> ExportedProgram:
    """Reads what `torch_tpu.export` saved; the weights go to the device.

    Needs neither the module's class nor a TPU: the program is compiled (or found in the caches of
    compiled programs) for the plugin that is there when it is first called.

    Raises FileNotFoundError, and ValueError for a file of another kind or of a newer version.
    """
    try:
        with zipfile.ZipFile(path) as file:
            meta = json.loads(file.read("meta.json"))
            if meta.get("format") != FORMAT:
                raise ValueError(f"load_exported: {path} was not made by torch_tpu.export")
            if meta["version"] > VERSION:
                raise ValueError(
                    f"load_exported: {path} has version {meta['version']} of the format, and this "
                    f"torch_tpu knows version {VERSION}; install a newer one"
                )
            texts = {p: file.read(f"program.{p}.mlir").decode() for p in PLATFORMS}
            weights = _unpack_weights(file.read("weights.safetensors"))
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError, struct.error) as error:
        raise ValueError(
            f"load_exported: {path} is damaged or was not made by torch_tpu.export: {error}"
        ) from None
    program = ExportedProgram(meta, texts, weights)
    program._device = program._stored
    return program
