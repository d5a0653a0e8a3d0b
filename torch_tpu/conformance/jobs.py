# SPDX-License-Identifier: Apache-2.0 - which conformance jobs there are, and how a worker does one.
"""A job: {"kind", "name", "dtype", "mode", "checks", "samples", "skip": {check: [indices]}}."""

import math
import warnings

import torch

from torch_tpu.conformance import models, modules, opinfo, optimizers, programs
from torch_tpu.conformance.cases import settle
from torch_tpu.conformance.samples import dtype_name, full_name, op_db

MODES = {
    "strict": "DEFER_NEVER",
    "debug": "DEFER_NEVER_AND_LAUNCH_BLOCKING",
    "defer": "DEFER_AND_FUSE",
    "compile": "DEFER_NEVER",
}
_ops = {full_name(op): op for op in op_db}
KINDS = {
    "op": (_ops, opinfo),
    "module": (modules.by_name, modules),
    "optimizer": (optimizers.by_name, optimizers),
    "model": (models.by_name, models),
}


def _dtypes(kind: str, info) -> list[torch.dtype]:
    if kind == "optimizer":
        return [torch.float32, torch.float64]
    if kind == "model":
        return [torch.float32]
    return sorted(info.supported_dtypes("cpu"), key=str)


def list_jobs(kinds, names, dtypes, mode, checks, samples) -> list[dict]:
    """Every (op, dtype) that PyTorch's CPU supports, with the checks that apply to it.

    Empty `names`, `dtypes`, `checks` mean all. Raises LookupError for a name nobody has.
    """
    jobs, found = [], set()
    for kind in kinds:
        table, home = KINDS[kind]
        for name, info in table.items():
            if names:
                hits = {n for n in names if n in (name, getattr(info, "name", name))}
                found |= hits
                if not hits:
                    continue
            for dtype in _dtypes(kind, info):
                if dtypes and dtype_name(dtype) not in dtypes:
                    continue
                wanted = [
                    c
                    for c in home.CHECKS
                    if (not checks or c in checks or kind == "optimizer")
                    and home.applies(info, dtype, c)
                ]
                if wanted:
                    jobs.append(
                        {
                            "kind": kind,
                            "name": name,
                            "dtype": dtype_name(dtype),
                            "mode": mode,
                            "checks": wanted,
                            "samples": samples,
                        }
                    )
    if set(names) - found:
        raise LookupError(f"nothing is named {', '.join(sorted(set(names) - found))}")
    return jobs


def _compiled(op):
    torch._dynamo.reset()
    return torch.compile(lambda *args, **kwargs: op(*args, **kwargs), backend="tpu")


def run(job: dict, tell) -> None:
    """Tells `begin` before a sample and `outcome` after it, and `check` when a check is through."""
    if job["kind"] == "tpu":
        programs.compile_batch(job, tell)
        return
    tpu = torch.tpu
    if "collect" in job and job["kind"] != "model":
        programs.start()
    tpu.set_eager_mode(tpu.EagerMode[MODES[job["mode"]]])
    dtype = getattr(torch, job["dtype"])
    table, home = KINDS[job["kind"]]
    info = table[job["name"]]
    fallbacks = sum(tpu.fallback_counts().values())
    texts = []

    def graphs(check, made, programs_for_tpu):
        """Of a model: what kinds of graphs it became, and their programs."""
        tell(note=[check, made])
        texts.extend(programs_for_tpu)

    def report(outcome):
        nonlocal fallbacks
        now = sum(tpu.fallback_counts().values())
        if now != fallbacks:
            outcome.status, outcome.message, fallbacks = "wrong", "ran on the CPU", now
        worst = outcome.worst if math.isfinite(outcome.worst) else 1e300
        tell(
            outcome=[
                outcome.check,
                outcome.index,
                outcome.status,
                worst,
                outcome.message,
                outcome.what,
            ]
        )

    for check in job["checks"]:
        skip = frozenset(job.get("skip", {}).get(check, ()))

        def begin(index, check=check):
            tell(begin=[check, index])

        if check == "errors":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for outcome in home.errors(info, skip, begin, job["samples"]):
                    report(outcome)
        else:
            extra = {}
            if job["mode"] == "compile" and job["kind"] == "op":
                extra["call"] = _compiled
            elif job["mode"] == "compile" and job["kind"] == "model":
                extra = {"compiled": graphs}
            for case in home.cases(info, dtype, check, job["samples"], **extra):
                if case.index in skip:
                    continue
                begin(case.index)
                for outcome in settle(case, job["mode"]):
                    report(outcome)
        tell(check=check)
    if "collect" in job:
        tpu.synchronize()
        # Of models, only what they were compiled to: operators have conformance of their own.
        texts = texts if job["kind"] == "model" else programs.collected()
        tell(programs=programs.save(job["collect"], texts))
