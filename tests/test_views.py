# SPDX-License-Identifier: Apache-2.0 - views and writes through them: what one sees, all see, in every mode.
"""Random chains of views, in-place writes and reads, run on the CPU and on the device.

The CPU decides what is right, also which writes are refused. Where PyTorch leaves the result to the
order in which elements happen to be written (source and target overlap in a way it does not detect),
the device reads everything before it writes.

The quick test draws the same examples in every run, so that compiled programs come from the disk
cache. The slow one draws new ones; TORCH_TPU_VIEW_EXAMPLES sets how many.
"""

import math
import os

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

tpu = torch.tpu
MODES = pytest.mark.parametrize("mode", list(tpu.EagerMode), ids=lambda m: m.name)
HEALTH = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
QUICK = settings(max_examples=60, derandomize=True, database=None, **HEALTH)
MANY = settings(
    max_examples=int(os.environ.get("TORCH_TPU_VIEW_EXAMPLES", "500")),
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
    **HEALTH,
)

# Few shapes and types: a program that was compiled once serves many examples.
SHAPES = [(24,), (4, 6), (2, 3, 4), (2, 3, 2, 2), (), (3, 0)]
DTYPES = [torch.float32, torch.int64, torch.uint8, torch.bfloat16, torch.complex64, torch.bool]
WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.float32, 8: torch.int64}


def fresh(shape, dtype):
    values = torch.arange(math.prod(shape)).reshape(shape)
    return (values % 2 == 0) if dtype == torch.bool else (values % 100).to(dtype)


def overlaps_itself(t):
    """Whether two elements of t are the same memory."""
    if t.numel() == 0:
        return False
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    at = torch.arange(span).as_strided(t.shape, t.stride())
    return at.unique().numel() < t.numel()


class Machine:
    """Pairs (on the CPU, on the device) of tensors that are views of a few bases."""

    def __init__(self, draw):
        self.draw = draw
        self.pairs = []
        self.add_base()

    def pick(self, options, label=None):
        return self.draw(st.sampled_from(list(options)), label)

    def add_base(self):
        host = fresh(self.pick(SHAPES, "shape"), self.pick(DTYPES, "dtype"))
        # Half of them have never been on the host: memory that no program has written yet.
        if self.draw(st.booleans(), "written"):
            self.pairs.append((host, host.to("tpu")))
        else:
            self.pairs.append((torch.zeros_like(host), torch.empty_like(host, device="tpu")))

    # ---- views ----------------------------------------------------------------------------------

    def view(self):
        host, device = self.pick(self.pairs, "of")
        make = self.draw_view(host)
        if make is None:
            return
        name, function = make
        note(f"view: {name} of {tuple(host.shape)} {host.stride()} +{host.storage_offset()}")
        seen, mine = function(host), function(device)
        assert (mine.shape, mine.stride(), mine.storage_offset(), mine.dtype) == (
            seen.shape,
            seen.stride(),
            seen.storage_offset(),
            seen.dtype,
        )
        self.pairs.append((seen, mine))

    def draw_view(self, t):
        rank, kinds = t.dim(), ["unsqueeze", "as_strided", "dtype", "reshape"]
        if rank:
            kinds += [
                "select",
                "slice",
                "step",
                "narrow",
                "expand",
                "chunk",
                "split",
                "squeeze",
                "unfold",
            ]
        if rank > 1:
            kinds += ["transpose", "permute", "flatten", "diagonal", "movedim"]
        kind = self.pick(kinds, "view")
        d = self.pick(range(rank), "dim") if rank else 0
        n = t.shape[d] if rank else 1
        match kind:
            case "unsqueeze":
                return kind, lambda x: x.unsqueeze(d)
            case "squeeze":
                return kind, lambda x: x.squeeze(d)
            case "select" if n:
                i = self.pick(range(-n, n), "index")
                return f"select({d}, {i})", lambda x: x.select(d, i)
            case "slice" | "step":
                begin = self.pick(range(n + 1), "begin")
                step = self.pick([2, 3], "step") if kind == "step" else 1
                cut = (slice(None),) * d + (slice(begin, None, step),)
                return f"slice({d}, {begin}, step {step})", lambda x: x[cut]
            case "narrow" if n:
                begin = self.pick(range(n), "begin")
                length = self.pick(range(n - begin + 1), "length")
                return f"narrow({d}, {begin}, {length})", lambda x: x.narrow(d, begin, length)
            case "expand":
                sizes = [3 if k == 1 else -1 for k in t.shape]
                return f"expand({sizes})", lambda x: x.expand(2, *sizes)
            case "chunk":
                return f"chunk(2, {d})[-1]", lambda x: x.chunk(2, d)[-1]
            case "split":
                return f"split(2, {d})[0]", lambda x: x.split(2, d)[0]
            case "unfold" if n >= 2:
                step = self.pick([1, 2], "step")
                return f"unfold({d}, 2, {step})", lambda x: x.unfold(d, 2, step)
            case "transpose":
                e = self.pick(range(rank), "other")
                return f"transpose({d}, {e})", lambda x: x.transpose(d, e)
            case "permute":
                order = [*range(1, rank), 0]
                return f"permute({order})", lambda x: x.permute(order)
            case "movedim":
                return f"movedim({d}, 0)", lambda x: x.movedim(d, 0)
            case "flatten":
                shape = t.flatten().shape  # a copy where it can't be a view: then it isn't one here
                if t.numel() and t.flatten().data_ptr() != t.data_ptr():
                    return None
                return kind, lambda x: x.flatten() if len(shape) == 1 else x
            case "diagonal":
                return kind, lambda x: x.diagonal()
            case "as_strided" if t.numel():
                # Whatever fits behind the tensor's first element, transposed and with gaps too.
                room = t.untyped_storage().nbytes() // t.element_size() - t.storage_offset()
                forms = [
                    ((2, 2), (1, 2)),
                    ((3,), (2,)),
                    ((2, 2), (3, 1)),
                    ((2, 3), (5, 2)),
                    ((1,), (1,)),
                ]
                fit = [f for f in forms if sum((n - 1) * s for n, s in zip(*f, strict=True)) < room]
                sizes, strides = self.pick(fit, "form")
                return f"as_strided({sizes}, {strides})", lambda x: x.as_strided(sizes, strides)
            case "reshape":
                try:
                    shape = self.pick([(-1,), (2, -1), (-1, 3), (1, -1, 2)], "to")
                    t.view(shape)
                except RuntimeError:
                    return None
                return f"view({shape})", lambda x: x.view(shape)
            case "dtype":
                if t.dtype == torch.complex64:
                    return "view_as_real", torch.view_as_real
                if t.dtype == torch.bool:
                    return None
                dtype = self.pick(WIDTHS.values(), "as")
                try:
                    t.view(dtype)
                except RuntimeError:
                    return None
                return f"view({dtype})", lambda x: x.view(dtype)
        return None

    # ---- writes ---------------------------------------------------------------------------------

    def write(self):
        host, device = self.pick(self.pairs, "into")
        kinds = ["fill", "zero"]
        if not overlaps_itself(host) or 0 in host.stride():
            kinds += ["add", "mul", "copy", "copy_same_base", "out", "setitem", "masked_fill"]
            if host.dim():
                kinds += ["index_put", "setitem_step", "index_fill"]
        kind = self.pick(kinds, "write")
        if overlaps_itself(host) and kind in ("index_put", "index_fill", "masked_fill"):
            return  # deprecated there, and what it does depends on the order
        note(
            f"write: {kind} into {tuple(host.shape)} {host.stride()} +{host.storage_offset()} {host.dtype}"
        )
        value = self.pick([0, 1, 5] if host.dtype != torch.bool else [0, 1], "value")
        match kind:
            case "fill":
                self.both(host, device, lambda x, _: x.fill_(value))
            case "zero":
                self.both(host, device, lambda x, _: x.zero_())
            case "add" if host.dtype != torch.bool:
                self.both(host, device, lambda x, _: x.add_(value))
            case "mul":
                self.both(host, device, lambda x, _: x.mul_(value))
            case "copy":
                # From another type, and broadcast.
                dtype = (
                    torch.uint8
                    if host.dtype == torch.bool
                    else self.pick([torch.float32, torch.uint8], "from")
                )
                shape = host.shape[1:] if self.draw(st.booleans(), "broadcast") else host.shape
                other = fresh(shape, dtype)
                source = (other, other.to("tpu"))
                self.both(host, device, lambda x, y: x.copy_(y), source)
            case "copy_same_base":
                source = self.pick([p for p in self.pairs if p[0].shape == host.shape], "from")
                if overlaps_itself(source[0]) and source[0].numel() > 24:
                    return
                if self.order_matters(host, source[0]):
                    source = (source[0].clone(), source[1])
                self.both(host, device, lambda x, y: x.copy_(y), source)
            case "out" if not host.is_complex() and host.dtype != torch.bool:
                other = fresh(host.shape, host.dtype)
                source = (other, other.to("tpu"))
                self.both(host, device, lambda x, y: torch.add(y, value, out=x), source)
            case "setitem":
                self.both(host, device, lambda x, _: x.__setitem__(..., value))
            case "setitem_step" if host.shape[0]:
                self.both(host, device, lambda x, _: x.__setitem__(slice(0, None, 2), value))
            case "masked_fill":
                mask = fresh(host.shape, torch.bool)
                self.both(
                    host, device, lambda x, y: x.masked_fill_(y, value), (mask, mask.to("tpu"))
                )
            case "index_put" if host.shape[0]:
                index = torch.tensor([host.shape[0] - 1, 0][: host.shape[0]])
                source = (index, index.to("tpu"))
                add = host.dtype not in (torch.bool,) and self.draw(st.booleans(), "accumulate")
                self.both(
                    host,
                    device,
                    lambda x, y: x.index_put_(
                        (y,), torch.tensor(value, dtype=x.dtype), accumulate=add
                    ),
                    source,
                )
            case "index_fill" if host.shape[0]:
                index = torch.tensor([0])
                self.both(
                    host, device, lambda x, y: x.index_fill_(0, y, value), (index, index.to("tpu"))
                )

    def order_matters(self, target, source):
        """PyTorch can't tell whether they overlap, so its result is that of some order."""
        if target.untyped_storage().data_ptr() != source.untyped_storage().data_ptr():
            return False
        dense = torch.ops.aten.is_non_overlapping_and_dense
        return not (dense(target) and dense(source))

    def both(self, host, device, write, source=(None, None)):
        expected = None
        try:
            write(host, source[0])
        except RuntimeError as e:
            expected = e
        if expected is None:
            write(device, source[1])
        else:
            with pytest.raises(RuntimeError, match=r"(?i)memory location|shape|cast|inplace"):
                write(device, source[1])

    # ---- reads ----------------------------------------------------------------------------------

    def read(self):
        host, device = self.pick(self.pairs, "read")
        note(f"read {tuple(host.shape)} {host.stride()} +{host.storage_offset()}")
        if host.dtype == torch.bool:
            same(device.logical_not(), host.logical_not())
        else:
            same(device + 1, host + 1)

    def check(self):
        for host, device in self.pairs:
            same(device, host)


def same(device, host):
    torch.testing.assert_close(device.cpu(), host, rtol=0, atol=0, equal_nan=True)


def run_chain(data, mode, steps):
    with tpu.eager_mode(mode):
        machine = Machine(data.draw)
        for step in range(steps):
            kind = machine.pick(["view", "view", "write", "write", "read", "base"], f"step {step}")
            if kind == "base":
                if step == 3:
                    machine.add_base()
                continue
            getattr(machine, kind)()
        machine.check()


@MODES
@QUICK
@given(data=st.data())
def test_chains_of_views_and_writes(mode, data):
    run_chain(data, mode, steps=8)


@pytest.mark.slow
@MODES
@MANY
@given(data=st.data())
def test_many_chains_of_views_and_writes(mode, data):
    run_chain(data, mode, steps=12)


# ---- rules that a chain meets too rarely -------------------------------------------------------


@MODES
def test_bytes_that_fill_no_wider_element_stay(mode):
    """Ten bytes hold two floats and two bytes more."""
    with tpu.eager_mode(mode):
        host = torch.arange(10, dtype=torch.uint8)
        device = host.to("tpu")
        never_written = torch.empty(10, dtype=torch.uint8, device="tpu")
        for x in (host, device, never_written):
            x[:8].view(torch.float32).fill_(1.5)
            x[9] = 7
            x[4:8].view(torch.int32).add_(1)
        never_written[8] = 8
        same(device, host)
        assert never_written[:9].tolist() == host[:9].tolist()


@MODES
def test_one_flat_buffer_carved_into_views_of_other_types(mode):
    """What servers do with their key-value cache."""
    with tpu.eager_mode(mode):
        host = torch.zeros(4 * 64, dtype=torch.int8)
        device = host.to("tpu")
        index = torch.tensor([3, 0])
        for buffer, at in ((host, index), (device, index.to("tpu"))):
            for layer in range(2):
                part = buffer[layer * 128 : (layer + 1) * 128].view(torch.bfloat16)
                cache = part.as_strided((4, 2, 8), (16, 8, 1))
                cache.index_put_((at,), torch.full((2, 2, 8), layer + 1.5).to(cache))
                cache[1, :, ::2].copy_(torch.ones(2, 4))
        same(device.view(torch.bfloat16), host.view(torch.bfloat16))


@MODES
def test_bytes_of_booleans(mode):
    with tpu.eager_mode(mode):
        mask = torch.tensor([True, False, True], device="tpu")
        assert mask.view(torch.uint8).tolist() == [1, 0, 1]
        mask.view(torch.uint8)[1:].fill_(1)
        assert mask.tolist() == [True, True, True]


@MODES
def test_slices_at_other_places_are_one_program(mode):
    """Where a slice begins is an input of the program, so a loop over rows compiles once."""
    with tpu.eager_mode(mode):
        x = torch.arange(60.0, device="tpu").view(10, 6)

        def step(i):
            x[i].mul_(2)
            x[:, i % 5].add_(1)
            return x[i, 1:4].sum().item()

        step(0), step(1)
        before = made()
        for i in range(2, 10):
            step(i)
        assert made() == before
        host = torch.arange(60.0).view(10, 6)
        for i in range(10):
            host[i].mul_(2)
            host[:, i % 5].add_(1)
        same(x, host)


def made():
    """Programs that were not in memory, compiled or from disk."""
    tpu.synchronize()
    stats = tpu.cache_stats()
    return stats["programs_compiled"] + stats["disk_hits"]


OVERLAPS = {
    "add_ to an expanded tensor": lambda x: x.view(1, 6).expand(4, 6).add_(1),
    "copy_ to an expanded tensor": lambda x: x.view(1, 6).expand(4, 6).copy_(x.new_ones(4, 6)),
    "out= an expanded tensor": lambda x: torch.neg(x.new_ones(4, 6), out=x.expand(4, 6)),
    "from one element earlier": lambda x: x[1:].copy_(x[:-1]),
    "setitem from one element later": lambda x: x.__setitem__(slice(0, 5), x[1:]),
    "out= over half of the input": lambda x: torch.neg(x[:4], out=x[2:]),
    "add_ of the neighbours": lambda x: x[1:].add_(x[:-1]),
}


@MODES
@pytest.mark.parametrize("write", OVERLAPS.values(), ids=OVERLAPS)
def test_writes_that_overlap_are_refused(mode, write):
    with tpu.eager_mode(mode):
        for device in ("cpu", "tpu"):
            x = torch.arange(6.0, device=device)
            # Twice: the second call finds what the first has learned.
            for _ in range(2):
                with pytest.raises(RuntimeError, match="memory location"):
                    write(x)
            assert x.tolist() == [0, 1, 2, 3, 4, 5]


ALLOWED = {
    "fill_ of an expanded tensor": lambda x: x[:1].expand(4).fill_(9),
    "zero_ of an expanded tensor": lambda x: x.view(1, 6).expand(4, 6).zero_(),
    "fill_ of overlapping windows": lambda x: x.unfold(0, 3, 1)[1:3].fill_(9),
    "add_ of itself": lambda x: x[2:].add_(x[2:]),
    "out= the input": lambda x: torch.neg(x[1:4], out=x[1:4]),
    "copy_ to the other half": lambda x: x[3:].copy_(x[:3]),
    "add_ of a number of its own": lambda x: x.add_(x[5].clone()),
}


@MODES
@pytest.mark.parametrize("write", ALLOWED.values(), ids=ALLOWED)
def test_writes_that_only_seem_to_overlap_are_done(mode, write):
    with tpu.eager_mode(mode):
        host = torch.arange(6.0)
        device = host.to("tpu")
        write(host)
        write(device)
        same(device, host)


@MODES
def test_out_follows_the_memory_it_is_given(mode):
    with tpu.eager_mode(mode):
        x = torch.arange(6.0, device="tpu").view(2, 3)
        flipped = torch.zeros(3, 2, device="tpu").t()
        assert torch.neg(x, out=flipped) is flipped
        assert flipped.stride() == (1, 2)
        assert flipped.tolist() == (-x).tolist()
        # One of another size gets the size of the result; its storage may grow.
        small = torch.empty(0, device="tpu")
        torch.add(x, 1, out=small)
        assert small.tolist() == [[1, 2, 3], [4, 5, 6]]
        row = torch.zeros(4, 3, device="tpu")
        torch.sum(x, 0, out=row[2])
        assert row.tolist() == [[0, 0, 0], [0, 0, 0], [3, 5, 7], [0, 0, 0]]


@MODES
def test_a_view_lives_as_long_as_somebody_holds_it(mode):
    """The base tensor is gone, its memory is not; and results computed before a write keep their value."""
    with tpu.eager_mode(mode):
        view = torch.arange(12.0, device="tpu").view(3, 4)[1, ::2]
        before = view * 10
        copy = view.clone()
        view += 1
        assert (before.tolist(), copy.tolist(), view.tolist()) == ([40, 60], [4, 6], [5, 7])


@MODES
def test_set_and_resize_share_and_grow_a_storage(mode):
    with tpu.eager_mode(mode):
        x = torch.arange(6.0, device="tpu")
        y = torch.empty(0, device="tpu")
        y.set_(x.untyped_storage(), 2, (2, 2), (1, 2))
        y += 10
        assert x.tolist() == [0, 1, 12, 13, 14, 15]
        x.resize_(8)
        assert x[:6].tolist() == [0, 1, 12, 13, 14, 15]
        x[7] = 5
        y -= 10
        assert x[:6].tolist() == [0, 1, 2, 3, 4, 5]
        assert x[7].item() == 5
        x.resize_(2, 2)
        assert x.tolist() == [[0, 1], [2, 3]]
