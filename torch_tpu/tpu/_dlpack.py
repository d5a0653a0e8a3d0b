# SPDX-License-Identifier: Apache-2.0 - DLPack: tensors to and from NumPy, JAX and others without a copy where possible.
"""Exchange of tensors with other libraries by the DLPack protocol.

A device buffer is immutable and has no address that another library could use, except with the CPU
plugin, whose memory is the host's. There a tensor exports its current value, as CPU memory, without
a copy and marked read-only; later writes to the tensor go to other memory and are not seen by who
holds the export. (PyTorch itself forgets the mark: what torch.from_dlpack makes of it must not be
written to.) On a TPU an export is a copy, and only made when the CPU was asked for
(`numpy.from_dlpack(t, device="cpu")`).
"""

import torch
from torch.utils.dlpack import DLDeviceType

from torch_tpu import _C

_CPU = (DLDeviceType.kDLCPU, 0)
_TPU = (DLDeviceType.kDLExtDev, 0)


def _device_of(tensor: torch.Tensor):
    return _CPU if torch.tpu.get_device_properties().is_emulated else _TPU


def _export(tensor, *, stream=-1, max_version=None, dl_device=None, copy=None):
    """Tensor.__dlpack__ of a tpu tensor."""
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj() or tensor.is_neg():
        raise BufferError(
            "Can't export tensors with the conjugate or negative bit set, use tensor.resolve_conj()"
        )
    if tensor.layout != torch.strided:
        raise BufferError("Can't export tensors with layout other than torch.strided")
    wanted = tuple(dl_device) if dl_device is not None else _device_of(tensor)
    if wanted != _CPU:
        raise BufferError(
            "tpu memory has no addresses that another library could use; ask for a copy on the CPU "
            "(device='cpu'), or use Tensor.cpu()"
        )
    # Legacy capsules cannot say that they are read-only; consumers take them so.
    versioned = max_version is not None and max_version[0] >= 1
    try:
        return _C._to_dlpack(tensor, versioned, copy)
    except ValueError as error:
        raise BufferError(str(error).splitlines()[0]) from None


def install() -> None:
    """PyTorch's Tensor.__dlpack__ and __dlpack_device__ know no registered device ("Unknown device
    type tpu for Dlpack") and offer no hook, so a test for ours stands before them."""
    if getattr(torch.Tensor.__dlpack__, "knows_tpu", False):
        return
    stock_export, stock_device = torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__

    def __dlpack__(self, **options):
        if type(self) in (torch.Tensor, torch.nn.Parameter) and self.device.type == "tpu":
            return _export(self, **options)
        return stock_export(self, **options)

    def __dlpack_device__(self):
        if type(self) in (torch.Tensor, torch.nn.Parameter) and self.device.type == "tpu":
            return _device_of(self)
        return stock_device(self)

    __dlpack__.__doc__, __dlpack_device__.__doc__ = stock_export.__doc__, stock_device.__doc__
    __dlpack__.knows_tpu = True
    torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__ = __dlpack__, __dlpack_device__


def to_dlpack(tensor: torch.Tensor):
    """A DLPack capsule of the tensor's current value, as CPU memory: shared with the CPU plugin,
    a copy on a TPU."""
    if tensor.device.type != "tpu":
        raise ValueError(f"to_dlpack: expected a tpu tensor, got one on {tensor.device}")
    return _export(tensor, dl_device=_CPU)


def from_dlpack(array, *, copy: bool | None = None) -> torch.Tensor:
    """A tpu tensor with the contents of another library's CPU array.

    By default a copy. copy=False shares the memory, where the plugin can (the CPU plugin, 64-byte
    alignment, contiguous; else a ValueError): the array must then not change while the tensor's
    value is in use. Writing to the tensor does not write to the array.
    """
    host = torch.from_dlpack(array)
    if host.device.type == "tpu":
        return host
    return _C._device_value(host, copy is not False)
