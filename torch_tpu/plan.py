# SPDX-License-Identifier: Apache-2.0 - plan: which parallel layout of a training step fits a pod that is not here, and which is fastest.
"""All layouts are sketched with a pencil (`sketch`); the most promising are compiled by libtpu, each in a
process of its own, and those that fit are ranked by the time that their reports estimate."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from torch_tpu import _page, aot
from torch_tpu._decoder import CONFIGS, Config, Layout, training_step

_MOST_TENSOR = 16  # all-reduces in every layer: worth it among near neighbours only


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def layouts(c: Config, devices: int, batch: int, length: int) -> Iterator[Layout]:
    """All that divide the model and the batch evenly. Mixtures of experts are not divided by tensor."""
    for tensor in _divisors(devices):
        if tensor > _MOST_TENSOR or c.kv_heads % tensor or (c.experts and tensor > 1):
            continue
        for context in _divisors(devices // tensor):
            if length % context or context > 16:
                continue
            rest = devices // tensor // context
            if batch % rest:
                continue
            for expert in _divisors(rest) if c.experts else (1,):
                if c.experts and (c.experts % expert or expert == 1 < rest):
                    continue
                for shard in _divisors(rest // expert):
                    for recompute in (False, True):
                        yield Layout(
                            rest // expert // shard, shard, expert, context, tensor, recompute
                        )


@dataclass
class Sketch:
    bytes: float  # of a device's memory
    seconds: float  # arithmetic at half of the peak, then communication


def sketch(c: Config, layout: Layout, batch: int, length: int, chip: aot.Chip) -> Sketch:
    """Good for an order of what to try, not for numbers to publish."""
    tokens = batch // layout.batches * (length // layout.context)
    dense, experts = c.dense_weights, c.expert_weights
    # A weight, its gradient and AdamW's two moments in float32.
    size = 16 * (dense / layout.dense_parts + experts / (layout.devices / layout.tensor))
    a_layer = (dense / c.layers + experts / c.layers / layout.expert) / layout.tensor
    size += 2 * 2 * a_layer  # gathered in bfloat16, this layer's and the next one's
    hidden = c.hidden * (c.chosen * 1.25 if c.experts else 1)
    inside = 12 * c.width + (4 * c.heads * c.head + 3 * hidden) / layout.tensor
    kept = c.width if layout.recompute else inside
    size += 2 * tokens * (c.layers * kept + inside)
    size += (
        8 * batch // layout.batches * c.heads // layout.tensor * length // layout.context * length
    )
    size += 10 * tokens * c.vocabulary
    flops = 6 * c.active_weights * tokens / layout.tensor
    flops += 12 * c.layers * c.heads * c.head * tokens * length / layout.tensor
    flops *= 4 / 3 if layout.recompute else 1
    sent = 0.0
    if layout.dense_parts > layout.tensor:  # gathered twice, gradients once
        sent += 8 * dense / layout.tensor
        sent += 8 * experts / layout.expert
    if layout.data > 1:
        sent += 8 * dense / layout.dense_parts
    if layout.tensor > 1:
        sent += 4 * c.layers * 2 * 2 * tokens * c.width
    if layout.context > 1:
        sent += 3 * c.layers * 4 * tokens * c.kv_heads * c.head * (layout.context - 1)
    if layout.expert > 1:
        sent += 4 * c.layers * 2.5 * tokens * c.chosen * c.width
    cores = chip.cores
    return Sketch(size, flops / (chip.flops / cores / 2) + sent / (chip.links / cores))


@dataclass
class Tried:
    """One layout, compiled. report: what `aot.Report.json` tells; None: error says why."""

    layout: Layout
    report: dict | None
    error: str = ""

    @property
    def seconds(self) -> float:
        """The report's estimate; infinite where there is none."""
        return (self.report and self.report["seconds"]) or float("inf")

    @property
    def fits(self) -> bool:
        return self.report is not None and self.report["fits"]


@dataclass
class Plan:
    model: str
    topology: str
    devices: int
    batch: int
    length: int
    tried: list[Tried]  # the best first
    sketched: int  # layouts that were looked at

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f"{self.model} on {self.topology} ({self.devices} devices), {self.batch} sequences of "
            f"{self.length} tokens a step; {len(self.tried)} of {self.sketched} layouts compiled"
        )
        yield f"  {'layout':<52}{'memory':>11}{'step':>11}{'utilization':>13}  (estimates)"
        for t in self.tried:
            if t.report is None:
                yield f"  {t.layout!s:<52}failed: {t.error}"
                continue
            r = t.report
            size = f"{r['total'] / 2**30:.1f} GiB"
            if not t.fits:
                yield f"  {t.layout!s:<52}{size:>11}  does not fit {r['limit'] / 2**30:.1f} GiB"
                continue
            share = r["model_flops_utilization"]
            yield (
                f"  {t.layout!s:<52}{size:>11}{_page.amount(t.seconds, 's'):>11}"
                f"{f'{share:.0%}' if share else '':>13}"
            )
        if not any(t.fits for t in self.tried):
            yield "  nothing fits: a smaller batch, more devices, or chips with more memory"

    def json(self, path: str | os.PathLike | None = None) -> str:
        """The plan, each report included; also written to path if there is one."""
        text = json.dumps(asdict(self), indent=1)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text


def _compile(arguments: dict) -> aot.Report:
    """In a process of its own."""
    c, layout = Config(**arguments["config"]), Layout(**arguments["layout"])
    topology = arguments["topology"]
    with aot.abstract(topology if layout.devices > 1 else None):
        made = training_step(c, layout, arguments["batch"], arguments["length"])
        return aot.compile(*made, topology=topology)


def _try(arguments: dict, minutes: float, html: Path | None) -> Tried:
    layout = Layout(**arguments["layout"])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [sys.executable, "-m", "torch_tpu.plan", json.dumps(arguments), str(out)]
        if html is not None:
            html.mkdir(parents=True, exist_ok=True)
            name = str(layout).replace(", ", "-").replace(" ", "")
            stem = f"{arguments['model']}-{arguments['topology'].replace(':', '-')}-{name}"
            command.append(str(html / f"{stem}.html"))
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60 * minutes)
        except subprocess.TimeoutExpired:
            return Tried(layout, None, f"not compiled within {minutes:g} minutes (--minutes)")
        if done.returncode != 0 or not out.exists():
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            return Tried(layout, None, last)
        return Tried(layout, json.loads(out.read_text()))


def plan(
    model: str | Config,
    topology: str,
    batch: int,
    length: int,
    *,
    tries: int = 6,
    jobs: int = 2,
    minutes: float = 60,
    layout: Layout | None = None,
    html: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Plan:
    """Looks for the parallel layout of a training step.

    model: a key of CONFIGS, or sizes of your own; topology: as libtpu spells it ("v6e:16x16"); batch:
    sequences of `length` tokens in a step of all devices. tries: how many layouts are compiled, `jobs` of
    them at a time, up to `minutes` each; or only `layout`. html: a folder for a page of each. say: is told
    of progress, line by line. Raises ValueError where nothing divides evenly, RuntimeError where libtpu
    does not know the topology.
    """
    name = model if isinstance(model, str) else "model"
    if isinstance(model, str) and model not in CONFIGS:
        raise ValueError(f"no model {model!r}; there are {', '.join(CONFIGS)}")
    c = CONFIGS[model] if isinstance(model, str) else model
    devices = aot.device_count(topology)
    chip = aot.CHIPS[topology.split(":")[0]]
    every = list(layouts(c, devices, batch, length)) if layout is None else [layout]
    if layout is not None and layout.devices != devices:
        raise ValueError(f"{layout} takes {layout.devices} devices, {topology} has {devices}")
    if not every:
        raise ValueError(
            f"no layout divides {batch} sequences of {length} tokens evenly among {devices} devices: "
            "make the batch a multiple of the devices, or of a part of them"
        )
    sketches = {la: sketch(c, la, batch, length, chip) for la in every}
    memory = chip.hbm // chip.cores
    # What is far too large is looked at last; between layouts alike the simpler one comes first.
    order = sorted(
        every, key=lambda la: (sketches[la].bytes > 1.2 * memory, sketches[la].seconds, la)
    )
    chosen = order[:tries]
    shared = {
        "model": name,
        "config": asdict(c),
        "topology": topology,
        "batch": batch,
        "length": length,
    }
    tried = []
    begin = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        running = {
            pool.submit(_try, {**shared, "layout": asdict(la)}, minutes, html): la for la in chosen
        }
        say(f"{len(every)} layouts; compiling {len(chosen)}, {jobs} at a time")
        for future in as_completed(running):
            t = future.result()
            tried.append(t)
            word = "fits" if t.fits else "does not fit" if t.report else f"failed: {t.error}"
            took = time.monotonic() - begin
            say(f"[{len(tried)}/{len(chosen)}, {took:.0f} s] {t.layout}: {word}")
    tried.sort(key=lambda t: (not t.fits, t.report is None, t.seconds))
    return Plan(name, topology, devices, batch, length, tried, len(every))


def parse_layout(text: str) -> Layout:
    """ "shard=64,recompute" """
    parts: dict[str, int | bool] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name == "recompute" and not value:
            parts[name] = True
        elif name in ("data", "shard", "expert", "context", "tensor") and value.isdigit():
            parts[name] = int(value)
        else:
            raise ValueError(
                f"{part!r} is no part of a layout; write shard=64,tensor=4,recompute and the like "
                "(data, shard, expert, context, tensor)"
            )
    return Layout(**parts)


if __name__ == "__main__":
    result = _compile(json.loads(sys.argv[1]))
    result.json(sys.argv[2])
    if len(sys.argv) > 3:
        result.html(sys.argv[3])
