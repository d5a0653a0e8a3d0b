# SPDX-License-Identifier: Apache-2.0 - compiles the programs of a run for real TPUs, with libtpu.
"""Workers write the TPU form of each program they build to a folder, one file a text, named by its hash.
A job of kind "tpu" compiles a batch of them; its row's check is the topology, and lists the hashes."""

import hashlib
import os
from collections.abc import Iterable

from torch_tpu import _C

BATCH = 40


def start() -> None:
    _C._collect_programs(True)


def collected() -> list[str]:
    """The texts of what was built since `start`, which begins anew."""
    texts = _C._collect_programs(False)
    start()
    return texts


def save(folder: str, texts: Iterable[str]) -> list[str]:
    """Writes each text once; returns their hashes."""
    os.makedirs(folder, exist_ok=True)
    hashes = []
    for text in set(texts):
        name = hashlib.sha256(text.encode()).hexdigest()[:24]
        hashes.append(name)
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            partial = f"{path}.{os.getpid()}"
            with open(partial, "w") as f:
                f.write(text)
            os.replace(partial, path)
    return sorted(hashes)


def list_jobs(folder: str, topologies: list[str], rows: dict) -> list[dict]:
    """Batches of what no row says was compiled."""
    done = {t: set() for t in topologies}
    for row in rows.values():
        if row["kind"] == "tpu" and row["check"] in done:
            done[row["check"]].update(row["hashes"])
    jobs = []
    names = sorted(n for n in os.listdir(folder) if "." not in n) if os.path.isdir(folder) else []
    for topology in topologies:
        left = [n for n in names if n not in done[topology]]
        for at in range(0, len(left), BATCH):
            batch = left[at : at + BATCH]
            jobs.append(
                {
                    "kind": "tpu",
                    "name": batch[0],
                    "dtype": "",
                    "mode": "",
                    "checks": [topology],
                    "samples": 0,
                    "folder": folder,
                    "hashes": batch,
                }
            )
    return jobs


def compile_batch(job: dict, tell) -> None:
    for topology in job["checks"]:
        skip = set(job.get("skip", {}).get(topology, ()))
        for index, name in enumerate(job["hashes"]):
            if index in skip:
                continue
            tell(begin=[topology, index])
            with open(os.path.join(job["folder"], name)) as f:
                text = f.read()
            status, message = "ok", ""
            try:
                _C._compile_for_topology(text, topology)
            except RuntimeError as error:
                status, message = "error", str(error)[:600]
            tell(outcome=[topology, index, status, 0.0, message, name if message else ""])
        tell(check=topology)
