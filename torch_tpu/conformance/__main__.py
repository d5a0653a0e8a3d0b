# SPDX-License-Identifier: Apache-2.0 - the command line: runs conformance jobs, reports, guards the ratchet.
"""Compares device "tpu" with PyTorch on the CPU, by PyTorch's own operator, module and optimizer samples.

Everything takes hours; a first look is `--dtype float32 --check forward`. Ends with 1 when something
fails that tests/ops/ratchet.json says passed. `--models` compares whole models instead."""

import argparse
import json
import os
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RATCHET = os.path.join(ROOT, "tests", "ops", "ratchet.json")
DOCS = os.path.join(ROOT, "docs", "operators.md")
MODEL_DOCS = os.path.join(ROOT, "docs", "models.md")


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m torch_tpu.conformance", description=__doc__)
    add = parser.add_argument
    add(
        "--op",
        action="append",
        default=[],
        metavar="NAME",
        help="only this OpInfo, module, optimizer or model: add, div.floor_rounding, nn.LSTM, Adam; repeatable",
    )
    add(
        "--models",
        action="store_true",
        help="tiny models of transformers and diffusers, eager and compiled; --kind, --mode, "
        "--timeout and --out then have defaults of their own, and --docs writes docs/models.md",
    )
    add("--kind", type=words, help="op,module,optimizer,model; default: the first three")
    add("--dtype", type=words, default=[], help="float32,int64,...; default: all that CPU has")
    add("--mode", type=words, help="strict,defer,debug,compile; default: strict")
    add(
        "--check",
        type=words,
        default=[],
        help="forward,noncontiguous,out,inplace,backward,gradgrad,forward_ad,errors; default: all",
    )
    add(
        "--samples",
        type=int,
        default=0,
        metavar="N",
        help="N samples spread over all; default: all",
    )
    add("--workers", type=int, default=2, metavar="N", help="processes; default: 2")
    add("--timeout", type=float, help="seconds one sample may take; default: 180")
    add(
        "--job-timeout",
        type=float,
        default=3600,
        help="seconds one operator may take; default: 3600",
    )
    add("--shard", default="1/1", metavar="I/N", help="the I-th of N parts")
    add(
        "--out",
        metavar="DIR",
        help="results; default: build/conformance",
    )
    add("--resume", action="store_true", help="keep the results in DIR and run what they lack")
    add("--retry", action="store_true", help="with --resume: run again what was not right")
    add(
        "--tpu",
        type=words,
        default=[],
        metavar="TOPOLOGIES",
        help="then compile every program for these with libtpu: v6e:1x1x1,tpu7x:1x1x1",
    )
    add("--report", action="store_true", help="run nothing: only say what DIR holds")
    add(
        "--docs",
        action="store_true",
        help="write docs/operators.md from DIR and the ratchet, or models.md from DIR",
    )
    add("--update-ratchet", action="store_true", help="write what passed to tests/ops/ratchet.json")
    args = parser.parse_args()
    if args.models:
        defaults = (["model"], ["strict", "compile"], 600.0, "build/models")
    else:
        defaults = (["op", "module", "optimizer"], ["strict"], 180.0, "build/conformance")
    for name, value in zip(("kind", "mode", "timeout", "out"), defaults, strict=True):
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def unfinished(jobs: list[dict], rows: dict, retry: bool = False) -> list[dict]:
    """The jobs with the checks that the results lack; with `retry`, also those that were not right."""
    from torch_tpu.conformance.report import state

    left = []
    for job in jobs:
        start = (job["kind"], job["name"], job["dtype"], job["mode"])
        checks = [
            c
            for c in job["checks"]
            if (*start, c) not in rows
            or rows[*start, c].get("limit") != job["samples"]
            or (retry and state(rows[*start, c]) in ("bad", "loose"))
        ]
        if checks:
            left.append({**job, "checks": checks})
    return left


class Progress:
    """A bar on a terminal; else a line for every failing row and one every half minute."""

    def __init__(self, what: str):
        self.what, self.start, self.told, self.failing = what, time.monotonic(), 0.0, 0
        self.terminal = sys.stderr.isatty()

    def __call__(self, run, row: dict) -> None:
        from torch_tpu.conformance.report import state

        now = time.monotonic() - self.start
        failed = state(row) in ("bad", "loose")
        self.failing += failed
        share = run.finished / max(run.total, 1)
        left = f", {now / share - now:.0f} s left" if share > 0.02 else ""
        line = f"{run.finished}/{run.total} {self.what}, {self.failing} failing, {now:.0f} s{left}"
        if self.terminal:
            bar = "#" * round(30 * share)
            if failed:
                self._clear()
                self._failure(row)
            sys.stderr.write(f"\r[{bar:30}] {line}: {row['name']}"[:140] + "\033[K")
            sys.stderr.flush()
        else:
            if failed:
                self._failure(row)
            if now - self.told > 30:
                self.told = now
                print(line, flush=True)

    def _failure(self, row: dict) -> None:
        reason = row.get("failures", [[0, "", "", ""]])[0]
        counts = ", ".join(f"{n} {s}" for s, n in row["counts"].items())
        print(
            f"{row['name']} {row['dtype']} {row['check']}: {counts}: {reason[2][:160]}", flush=True
        )

    def _clear(self) -> None:
        if self.terminal:
            sys.stderr.write("\r\033[K")

    def end(self) -> None:
        self._clear()


def run(args: argparse.Namespace, results: str) -> None:
    from torch_tpu.conformance import jobs, programs, report
    from torch_tpu.conformance.coordinator import Coordinator

    environment = dict(os.environ)
    # An operator that runs on the CPU does not count, and host kernels stand in for lowerings.
    environment.pop("TORCH_TPU_CPU_FALLBACK", None)
    environment.setdefault("TORCH_TPU_HOST_KERNELS", "0")

    def go(todo, what):
        progress = Progress(what)
        Coordinator(
            todo,
            results,
            workers=args.workers,
            timeout=args.timeout,
            job_timeout=args.job_timeout,
            environment=environment,
            progress=progress,
        ).run()
        progress.end()

    todo = []
    for mode in args.mode:
        todo += jobs.list_jobs(args.kind, args.op, args.dtype, mode, args.check, args.samples)
    index, count = map(int, args.shard.split("/"))
    todo = unfinished(todo[index - 1 :: count], report.load(results), args.retry)
    folder = os.path.join(args.out, "programs")
    if args.tpu or args.models:  # those of models are few, and can be compiled by a later run
        for job in todo:
            job["collect"] = folder
    if todo:
        go(todo, "jobs")
    if args.tpu:
        go(programs.list_jobs(folder, args.tpu, report.load(results)), "batches for libtpu")


def main() -> int:
    args = arguments()
    from torch_tpu.conformance import report

    os.makedirs(args.out, exist_ok=True)
    results = os.path.join(args.out, "results.jsonl")
    if not args.report:
        if not args.resume and os.path.exists(results):
            os.replace(results, results + ".old")
        try:
            run(args, results)
        except LookupError as error:
            print(f"conformance: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("\nstopped; --resume goes on", file=sys.stderr)
            return 130
    rows = report.load(results)
    found = report.summary(rows)
    failures = report.failure_lines(rows)
    with open(os.path.join(args.out, "summary.json"), "w") as f:
        json.dump(found | {"failures": failures}, f, indent=1)
    with open(os.path.join(args.out, "failures.txt"), "w") as f:
        f.write("\n".join(failures) + "\n")
    print(report.summary_text(found))
    print(f"{len(failures)} lines about failures: {os.path.join(args.out, 'failures.txt')}")
    ratchet = report.read_ratchet(RATCHET)
    if args.docs:
        from torch_tpu.conformance import docs

        if args.models:
            docs.write_models(MODEL_DOCS, rows)
        else:
            docs.write(DOCS, report.with_remembered(ratchet, rows))
        print(f"wrote {MODEL_DOCS if args.models else DOCS}")
    lost = report.regressions(ratchet, rows)
    if args.update_ratchet:
        report.write_ratchet(RATCHET, report.updated(ratchet, rows))
        print(f"wrote {RATCHET}")
    for line in lost:
        print(f"passed before and fails now: {line}")
    return 1 if lost and not args.update_ratchet else 0


if __name__ == "__main__":
    sys.exit(main())
