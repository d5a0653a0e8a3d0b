# SPDX-License-Identifier: Apache-2.0 - `python -m benchmarks`: runs all sides in turn and writes the table.
"""Side-by-side benchmarks: PyTorch CPU eager, torch_tpu eager, compiled and captured, and JAX jit.

python -m benchmarks                          everything; writes docs/benchmarks.{json,md}
python -m benchmarks --only mlp --rounds 3    one line of it; prints the table, writes nothing
python -m benchmarks --check                  exits with 1 unless all promised ratios hold
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import table
from benchmarks.plan import FIRST, QUIET, SIDES, WORKS
from benchmarks.sides import ROOT, Neighbours, Side, jax_python


def parse():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def names(known):
        def split(text):
            chosen = text.split(",")
            if wrong := set(chosen) - set(known):
                raise argparse.ArgumentTypeError(
                    f"unknown: {', '.join(sorted(wrong))}; known: {', '.join(known)}"
                )
            return chosen

        return split

    parser.add_argument("--only", type=names(WORKS), default=list(WORKS), help=", ".join(WORKS))
    parser.add_argument("--sides", type=names(SIDES), default=list(SIDES), help=", ".join(SIDES))
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default: 9)")
    parser.add_argument(
        "--starts", type=int, default=3, help="fresh processes for first steps (0: none)"
    )
    parser.add_argument("--device", default="tpu", help="device of the two tpu sides")
    parser.add_argument("--out", type=Path, help="folder for the results (a whole run: docs)")
    parser.add_argument("--check", action="store_true", help="exit with 1 unless all ratios hold")
    parser.add_argument("--verbose", action="store_true", help="show what the workers print")
    return parser.parse_args()


def say(text: str) -> None:
    print(text, flush=True)


def measure(work: str, sides: list[str], device: str, rounds: int) -> tuple[dict, float]:
    """One line of the table: all sides warm, then the rounds, each with all sides in turn.

    Also the share of the machine that other processes took during the rounds.
    """
    plan = WORKS[work]
    cells, workers = {}, {}
    for side in sides:
        say(f"  {plan.title}: starting {SIDES[side]}")
        workers[side] = Side(side, device)
        answer = workers[side].ask(do="first", work=work)
        if "error" not in answer:
            answer = workers[side].ask(do="run", steps=plan.warm, wait_each=plan.wait_each)
        if "error" not in answer:
            answer = workers[side].ask(do="facts")
        cells[side] = {"rounds": [], "warm": answer} if "error" not in answer else answer
    alive = [w.process.pid for side, w in workers.items() if "error" not in cells[side]]
    neighbours = Neighbours([os.getpid(), *alive])
    for turn in range(rounds):
        # Another order each time, so that no side always runs after the same neighbour.
        for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
            if "error" in cells[side]:
                continue
            answer = workers[side].ask(do="run", steps=plan.steps, wait_each=plan.wait_each)
            if "error" in answer:
                cells[side] = answer
            else:
                cells[side]["rounds"].append(answer["seconds"])
    busy = neighbours.share()
    for side in sides:
        if "error" not in cells[side]:
            cell = cells[side]
            cell["median"] = statistics.median(cell["rounds"])
            warm = cell.pop("warm")
            cell |= workers[side].ask(do="facts")
            if "cache" in cell and "cache" in warm:
                done, before = (
                    cell["cache"]["programs_compiled"],
                    warm["cache"]["programs_compiled"],
                )
                cell["compiled_in_rounds"] = done - before
        workers[side].close()
    return cells, busy


def first_steps(work: str, sides: list[str], device: str, starts: int) -> dict:
    """Seconds from the start of a process to the end of its first step, cache empty and full.

    And those of the first step alone, once everything is imported and the model is built.
    """
    cells = {}
    for side in sides:
        say(f"  {WORKS[work].title}: first steps of {SIDES[side]}")
        times = {"cold": [], "warm": [], "cold_step": [], "warm_step": []}
        for _ in range(starts):
            with tempfile.TemporaryDirectory() as cache:
                for state in ("cold", "warm"):
                    worker = Side(side, device, Path(cache))
                    answer = worker.ask(do="first", work=work)
                    times[state].append(worker.age())
                    worker.close()
                    if "error" in answer:
                        cells[side] = answer
                    else:
                        times[f"{state}_step"].append(answer["first_seconds"])
        if side not in cells:
            cells[side] = {state: statistics.median(values) for state, values in times.items()}
    return cells


def main() -> int:
    options = parse()
    Side.verbose = options.verbose
    everything = options.only == list(WORKS) and options.sides == list(SIDES)
    whole = everything and options.starts and options.device != "cpu"
    if "jax" in options.sides:
        jax_python()
    results = {
        "machine": table.machine(),
        "sides": options.sides,
        "rounds": options.rounds,
        "works": {},
        "neighbours": {},  # share of the machine that other processes took
        "first": {},
    }
    for work in options.only:
        cells, busy = measure(work, options.sides, options.device, options.rounds)
        results["works"][work], results["neighbours"][work] = cells, round(busy, 3)
    for work in FIRST:
        if options.starts and work in options.only:
            results["first"][work] = first_steps(
                work, options.sides, options.device, options.starts
            )
    text = table.page(results)
    say("\n" + text)
    disturbed = max(results["neighbours"].values()) > QUIET
    if disturbed:
        say("The machine was busy with other processes: run this again when it is quiet.")
    # The published page is only replaced by figures that mean something.
    out = options.out or (ROOT / "docs" if whole and not disturbed else None)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / "benchmarks.json").write_text(json.dumps(results, indent=1) + "\n")
        (out / "benchmarks.md").write_text(text)
        say(f"Written to {out}/benchmarks.json and benchmarks.md")
    kept = all(verdict == "held" for *_, verdict in table.promises(results))
    failed = any(
        "error" in cell
        for part in ("works", "first")
        for cells in results[part].values()
        for cell in cells.values()
    )
    return 1 if options.check and (failed or not kept) else 0


if __name__ == "__main__":
    sys.exit(main())
