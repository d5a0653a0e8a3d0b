# SPDX-License-Identifier: Apache-2.0 - hands jobs to worker processes and outlives their crashes and hangs.
"""One row a (kind, name, dtype, mode, check) goes to the results file, a JSON line each:

    {"kind", "name", "dtype", "mode", "check", "samples", "counts": {status: n}, "worst",
     "failures": [[index, status, message, sample]...], "seconds", "note": whatever the check told}

A worker that dies or is silent for too long costs the sample it was at; the job goes on after it
in a new process.
"""

import collections
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time

from torch_tpu.conformance.report import BAD

KEPT_FAILURES = 8
# Processes that a job may cost before the rest of it is given up.
MOST_LOSSES = 8
# Seconds until a worker is ready: it imports PyTorch's test data, on a busy machine for minutes.
START = 1800.0
WORKER = [sys.executable, "-m", "torch_tpu.conformance.worker"]


class Rows:
    """Collects a job's outcomes, by check."""

    def __init__(self, job: dict):
        self.job = job
        self.checks = {
            c: {"counts": collections.Counter(), "worst": 0.0, "failures": [], "seen": []}
            for c in [*job["checks"], "agree"]
        }
        self.strides = collections.Counter()

    def add(self, check, index, status, worst=0.0, message="", what="") -> None:
        row = self.checks[check]
        row["counts"][status] += 1
        row["seen"].append(index)
        if status in ("ok", "loose", "wrong"):
            worst = float(worst)
            # JSON has no infinity.
            row["worst"] = max(row["worst"], min(worst, 1e300))
        if message == "strides":
            self.strides[check] += 1
        elif status not in ("ok", "none"):
            kept = sum(f[1] in BAD for f in row["failures"])
            most = KEPT_FAILURES if self.job["kind"] != "tpu" else len(self.job["hashes"])
            if len(row["failures"]) < 2 or (status in BAD and kept < most):
                row["failures"].append([index, status, message, what])

    def result(self, check: str, seconds: float) -> dict:
        row, job = self.checks[check], self.job
        found = {
            "kind": job["kind"],
            "name": job["name"],
            "dtype": job["dtype"],
            "mode": job["mode"],
            "check": check,
            "limit": job["samples"],
            "counts": dict(row["counts"]),
            "worst": row["worst"],
            "seconds": round(seconds, 3),
        }
        if "hashes" in job:
            found["hashes"] = job["hashes"]
        if "note" in row:
            found["note"] = row["note"]
        if self.strides[check]:
            found["strides"] = self.strides[check]
        if row["failures"]:
            found["failures"] = row["failures"]
        return found


class Worker:
    def __init__(self, command: list[str], log: str, environment: dict):
        self.reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        self.log = open(log, "ab")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*command, str(writer)],
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            pass_fds=[writer],
            env=environment,
        )
        os.close(writer)
        self.buffer = b""
        self.rows: Rows | None = None
        self.at: list | None = None
        self.heard = time.monotonic()
        self.started = self.heard
        self.check_started = self.heard
        self.rss = 0
        self.ready = False

    def give(self, job: dict) -> None:
        self.rows, self.at = Rows(job), None
        self.heard = self.started = self.check_started = time.monotonic()
        self._send(job)

    def _send(self, job: dict) -> None:
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()

    def messages(self) -> list[dict] | None:
        """What has arrived; None when the process is gone."""
        data = os.read(self.reader, 1 << 16)
        if not data:
            return None
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        self.heard = time.monotonic()
        return [json.loads(line) for line in lines]

    def end(self, kill: bool = False) -> int:
        if kill:
            self.process.send_signal(signal.SIGKILL)
        else:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            code = self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        os.close(self.reader)
        self.log.close()
        return code


class Coordinator:
    def __init__(
        self,
        jobs,
        results: str,
        workers=2,
        timeout=120.0,
        job_timeout=1800.0,
        memory=3 << 30,
        environment=None,
        progress=None,
        command=WORKER,
    ):
        self.command = command
        self.jobs = collections.deque(jobs)
        self.total = len(self.jobs)
        self.results = results
        self.count = workers
        self.timeout, self.job_timeout, self.memory = timeout, job_timeout, memory
        self.environment = environment or dict(os.environ)
        self.progress = progress or (lambda *a: None)
        self.finished = 0
        self.selector = selectors.DefaultSelector()
        self.logs = tempfile.mkdtemp(prefix="torch-tpu-conformance-")

    def _start(self) -> Worker:
        worker = Worker(
            self.command, os.path.join(self.logs, f"worker-{os.getpid()}.log"), self.environment
        )
        self.selector.register(worker.reader, selectors.EVENT_READ, worker)
        return worker

    def _retire(self, worker: Worker, kill=False) -> int:
        self.selector.unregister(worker.reader)
        return worker.end(kill)

    def run(self) -> None:
        with open(self.results, "a", buffering=1) as self.file:
            workers = [self._start() for _ in range(min(self.count, len(self.jobs)))]
            try:
                while workers:
                    for key, _ in self.selector.select(timeout=1.0):
                        self._serve(key.data, workers)
                    now = time.monotonic()
                    for worker in list(workers):
                        if now - worker.heard > (self.timeout if worker.ready else START):
                            self._lost(worker, workers, "hang", f"no answer for {self.timeout:g} s")
                        elif worker.rows and now - worker.started > self.job_timeout:
                            self._lost(
                                worker,
                                workers,
                                "hang",
                                f"job over {self.job_timeout:g} s",
                                give_up=True,
                            )
            finally:
                for worker in workers:
                    self._retire(worker, kill=True)
        if self.jobs:
            raise RuntimeError(f"the worker processes do not start; their log is in {self.logs}")

    def _serve(self, worker: Worker, workers: list) -> None:
        messages = worker.messages()
        if messages is None:
            self._lost(worker, workers, "crash", None)
            return
        for message in messages:
            if "begin" in message:
                worker.at = message["begin"]
            elif "outcome" in message:
                worker.rows.add(*message["outcome"])
                worker.at = None
            elif "note" in message:
                check, note = message["note"]
                worker.rows.checks[check]["note"] = note
            elif "check" in message:
                now = time.monotonic()
                self._write(worker.rows, message["check"], now - worker.check_started)
                worker.check_started = now
            elif "programs" in message:
                job = worker.rows.job
                row = {k: job[k] for k in ("name", "dtype", "mode")}
                row |= {"kind": "programs", "check": job["kind"], "hashes": message["programs"]}
                self.file.write(json.dumps(row) + "\n")
            elif "failed" in message:
                for check in worker.rows.job["checks"]:
                    if check not in worker.rows.job.get("finished", ()):
                        worker.rows.add(check, -1, "error", message=message["failed"])
                        self._write(worker.rows, check, 0.0)
            elif "done" in message:
                worker.rss = message["rss"]
                self._finish(worker, workers)
            elif "ready" in message:
                worker.ready = True
                self._next(worker, workers)

    def _write(self, rows: Rows, check: str, seconds: float) -> None:
        rows.job.setdefault("finished", []).append(check)
        agree = rows.checks["agree"]
        if agree["counts"]:  # how this check's results agree with Strict's
            self.file.write(json.dumps(rows.result("agree", 0.0) | {"of": check}) + "\n")
            agree.update(counts=collections.Counter(), failures=[])
        row = rows.result(check, seconds)
        self.file.write(json.dumps(row) + "\n")
        self.progress(self, row)

    def _finish(self, worker: Worker, workers: list) -> None:
        self.finished += 1
        worker.rows = None
        if worker.rss > self.memory and self.jobs:
            self._retire(worker)
            workers.remove(worker)
            workers.append(self._start())
        else:
            self._next(worker, workers)

    def _next(self, worker: Worker, workers: list) -> None:
        if worker.rows is not None:  # a replacement that goes on with a job
            job, rows = worker.rows.job, worker.rows
            worker.heard = worker.started = worker.check_started = time.monotonic()
            left = [c for c in job["checks"] if c not in job.get("finished", ())]
            skip = {c: rows.checks[c]["seen"] for c in left}
            worker._send({**job, "checks": left, "skip": skip})
        elif self.jobs:
            worker.give(self.jobs.popleft())
        else:
            self._retire(worker)
            workers.remove(worker)

    def _lost(self, worker: Worker, workers: list, status: str, message, give_up=False) -> None:
        """Records the sample that killed or stopped the worker, and replaces the worker."""
        code = self._retire(worker, kill=status == "hang")
        workers.remove(worker)
        rows = worker.rows
        if rows is None:
            # Between two jobs: another takes its place. One that never said it was ready has no
            # successor.
            if self.jobs and worker.ready:
                workers.append(self._start())
            return
        message = message or _cause(code)
        left = [c for c in rows.job["checks"] if c not in rows.job.get("finished", ())]
        if worker.at is not None:
            check, index = worker.at
            rows.add(check, index, status, message=message)
        elif left:
            # Not in a sample: making them, or between two.
            rows.add(left[0], -1, status, message=message)
            rows.job["lost"] = rows.job.get("lost", 0) + MOST_LOSSES // 2
        rows.job["lost"] = rows.job.get("lost", 0) + 1
        give_up = give_up or rows.job["lost"] > MOST_LOSSES
        if give_up:
            for check in left:
                if not rows.checks[check]["counts"]:
                    rows.add(check, -1, status, message=message)
                self._write(rows, check, 0.0)
            self.finished += 1
            rows = None
        replacement = self._start()
        replacement.rows = rows
        workers.append(replacement)


def _cause(code: int) -> str:
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"
