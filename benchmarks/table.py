# SPDX-License-Identifier: Apache-2.0 - the results as a page of Markdown, and whether the promises hold.
"""`page()` writes docs/benchmarks.md from the results that docs/benchmarks.json holds."""

import importlib.metadata
import os
import platform
import statistics
from datetime import date

from benchmarks.plan import PROMISES, QUIET, SIDES, WORKS


def machine() -> dict:
    """What the figures were measured on."""

    def field(path, key):
        with open(path) as lines:
            return next((x.split(":", 1)[1].strip() for x in lines if x.startswith(key)), "unknown")

    def version(package):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"

    kibibytes = int(field("/proc/meminfo", "MemTotal").split()[0])
    return {
        "date": date.today().isoformat(),
        "processor": field("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory_gib": round(kibibytes / 2**20, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "torch_tpu": version("torch_tpu"),
        "transformers": version("transformers"),
    }


def ratio(results: dict, work: str, side: str, base: str = "cpu") -> float | None:
    """The median over the rounds of one side's time divided by the other's in the same round."""
    cells = results["works"].get(work, {})
    ours, theirs = (cells.get(name, {}).get("rounds") for name in (side, base))
    if not ours or not theirs:
        return None
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def memory_ratio(results: dict, work: str, side: str, base: str) -> float | None:
    """Of the peaks of two processes."""
    cells = results["works"].get(work, {})
    ours, theirs = (cells.get(name, {}).get("peak_mib") for name in (side, base))
    return ours / theirs if ours and theirs else None


def start_ratio(results: dict, work: str, side: str, base: str, *states: str) -> float | None:
    """Of two first steps, in these states of the cache."""
    cells = results["first"].get(work, {})
    ours, theirs = (
        cells.get(name, {}).get(s) for name, s in zip((side, base), states, strict=True)
    )
    return ours / theirs if ours and theirs else None


STARTS = {
    "cold": ("cold_step", "cold_step"),
    "warm": ("warm_step", "warm_step"),
    "warm/cold": ("warm_step", "cold_step"),
}
MEASURES = {"time": ratio, "memory": memory_ratio}
MEASURES |= {
    what: lambda *args, states=states: start_ratio(*args, *states)
    for what, states in STARTS.items()
}
NAMES = {
    "time": "",
    "memory": ", peak memory",
    "cold": ", first step with an empty cache",
    "warm": ", first step with a full cache",
    "warm/cold": ", first step with a full cache by that with an empty one",
}


def promises(results: dict) -> list[tuple[str, float, float | None, str]]:
    """(what, limit, measured, verdict) of each promise whose work and sides were part of the run."""
    found = []
    for promise in PROMISES:
        cells = results["works"].get(promise.work, {})
        if promise.side in cells and promise.base in cells:
            what = f"{WORKS[promise.work].title}: {SIDES[promise.side]} / {SIDES[promise.base]}"
            what += NAMES[promise.what]
            measured = MEASURES[promise.what](results, promise.work, promise.side, promise.base)
            if measured is None and promise.what in STARTS and not results["first"]:
                continue
            if measured is None:
                verdict = "failed"
            elif results["neighbours"].get(promise.work, 1.0) > QUIET:
                verdict = "not judged: the machine was busy"
            else:
                verdict = "held" if measured <= promise.limit else "MISSED"
            found.append((what, promise.limit, measured, verdict))
    return found


def row(*cells) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def head(*cells) -> list[str]:
    return [row(*cells), row(*["---"] * len(cells))]


def time_cell(results: dict, work: str, side: str) -> str:
    cell = results["works"][work].get(side)
    if cell is None:
        return "-"
    if "error" in cell:
        return "failed"
    plan = WORKS[work]
    scale = {"ms": 1e3, "us": 1e6}[plan.unit] / plan.parts
    text = f"{cell['median'] * scale:.3g} {plan.unit.replace('us', 'µs')}"
    times = ratio(results, work, side)
    return text if side == "cpu" or times is None else f"{text} ({times:.2f}x)"


def memory_cell(cell: dict | None) -> str:
    if cell is None or "peak_mib" not in cell:
        return "-"
    text = f"{cell['peak_mib']:.0f} MiB"
    if "device_peak_mib" in cell:
        text += f" ({cell['device_peak_mib']:.0f} on the device)"
    return text


def first_cell(cell: dict | None, part: str = "") -> str:
    if cell is None:
        return "-"
    if "error" in cell:
        return "failed"
    return f"{cell['cold' + part]:.2f} s / {cell['warm' + part]:.2f} s"


def page(results: dict) -> str:
    """The whole page."""
    sides, facts = results["sides"], results["machine"]
    names = [SIDES[side] for side in sides]
    lines = [
        "# Benchmarks",
        "",
        "Made by `make bench`: every side in one run, each in its own process, in turn, one at a time; "
        f"{results['rounds']} rounds, of which the medians are shown. In brackets the time divided by "
        "that of PyTorch CPU eager in the same round (median of the rounds; below 1 is faster). "
        f"The raw figures are in [benchmarks.json](benchmarks.json).",
        "",
        "Machine: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in facts.items()),
        "",
        "## Time, warm",
        "",
        *head("work", *names),
    ]
    for work in results["works"]:
        lines.append(row(WORKS[work].title, *(time_cell(results, work, s) for s in sides)))
    for work, cells in results["works"].items():
        for side, cell in cells.items():
            if cell.get("compiled_in_rounds"):
                lines += [
                    "",
                    f"Not warm: {WORKS[work].title}, {SIDES[side]}: "
                    f"{cell['compiled_in_rounds']} programs were compiled while it was measured.",
                ]
    for work, share in results["neighbours"].items():
        if share > QUIET:
            lines += [
                "",
                f"Disturbed: {WORKS[work].title}. Other processes used {share:.0%} of the machine "
                "while it was measured, so its figures say little.",
            ]
    lines += ["", "## Peak memory of the process", "", *head("work", *names)]
    for work, cells in results["works"].items():
        lines.append(row(WORKS[work].title, *(memory_cell(cells.get(s)) for s in sides)))
    if results["first"]:
        lines += [
            "",
            "## From starting the process to the end of the first step",
            "",
            "Empty compilation cache / filled by an earlier process. Imports are included.",
            "",
            *head("work", *names),
        ]
        for work, cells in results["first"].items():
            lines.append(row(WORKS[work].title, *(first_cell(cells.get(s)) for s in sides)))
        lines += [
            "",
            "The first step alone, when everything is imported and the model is built.",
            "",
        ]
        lines += head("work", *names)
        for work, cells in results["first"].items():
            alone = (first_cell(cells.get(s), "_step") for s in sides)
            lines.append(row(WORKS[work].title, *alone))
    kept = promises(results)
    if kept:
        lines += ["", "## Promised ratios", "", *head("ratio", "at most", "measured", "")]
        for what, limit, measured, verdict in kept:
            shown = "-" if measured is None else f"{measured:.2f}"
            lines.append(row(what, limit, shown, verdict))
    errors = [
        f"- {WORKS[work].title}, {SIDES[side]}: {cell['error']}"
        for part in ("works", "first")
        for work, cells in results[part].items()
        for side, cell in cells.items()
        if "error" in cell
    ]
    if errors:
        lines += ["", "## Failed", "", *dict.fromkeys(errors)]
    return "\n".join(lines) + "\n"
