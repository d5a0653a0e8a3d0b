# SPDX-License-Identifier: Apache-2.0 - the command line of the conformance run.
import argparse
import json
import os
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_tpu.conformance", description=__doc__)
    parser.add_argument("--op", action="append", default=[], help="only this OpInfo (repeatable)")
    parser.add_argument("--kind", default="op", help="op,module,optimizer")
    parser.add_argument("--dtype", default="", help="float32,int64,...; default: all")
    parser.add_argument("--mode", default="strict", help="strict, defer, debug, compile")
    parser.add_argument("--check", default="", help="forward,backward,...; default: all")
    parser.add_argument("--samples", type=int, default=0, help="this many per op; 0: all")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--shard", default="1/1", help="i/n: the i-th of n parts")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--out", default="conformance")
    args = parser.parse_args()

    from torch_tpu.conformance import jobs as job_list
    from torch_tpu.conformance.coordinator import BAD, Coordinator

    os.makedirs(args.out, exist_ok=True)
    results = os.path.join(args.out, "results.jsonl")
    jobs = []
    for mode in args.mode.split(","):
        jobs += job_list.list_jobs(
            args.kind.split(","),
            args.op,
            [d for d in args.dtype.split(",") if d],
            mode,
            [c for c in args.check.split(",") if c],
            args.samples,
        )
    index, count = map(int, args.shard.split("/"))
    jobs = jobs[index - 1 :: count]
    if args.resume and os.path.exists(results):
        done = set()
        for line in open(results):
            r = json.loads(line)
            done.add((r["kind"], r["name"], r["dtype"], r["mode"], r["check"], r["limit"]))
        for job in jobs:
            job["checks"] = [
                c
                for c in job["checks"]
                if (job["kind"], job["name"], job["dtype"], job["mode"], c, job["samples"])
                not in done
            ]
        jobs = [j for j in jobs if j["checks"]]
    elif os.path.exists(results):
        os.remove(results)
    environment = dict(os.environ)
    environment.pop("TORCH_TPU_CPU_FALLBACK", None)
    environment.setdefault("TORCH_TPU_HOST_KERNELS", "0")
    start = time.monotonic()

    def progress(run, row):
        bad = sum(n for s, n in row["counts"].items() if s in BAD)
        loose = row["counts"].get("loose", 0)
        if bad or loose or row["seconds"] > 20:
            reason = row.get("failures", [[0, "", ""]])[0]
            print(
                f"[{run.finished}/{run.total} {time.monotonic() - start:.0f}s] {row['name']} "
                f"{row['dtype']} {row['check']}: {row['counts']} {row['seconds']}s {reason[1]} "
                f"{reason[2][:150]}",
                flush=True,
            )

    Coordinator(
        jobs, results, args.workers, args.timeout, environment=environment, progress=progress
    ).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
