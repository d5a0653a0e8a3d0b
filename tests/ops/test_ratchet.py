# SPDX-License-Identifier: Apache-2.0 - what once passed conformance goes on passing: a few samples of everything.
"""`make conformance` runs every sample; ratchet.json tells what was right. Here a few samples of every
entry run: forward, out=, in-place, gradients and errors in float32, and forward in one other dtype,
another one for the next operator. Slow: more checks and dtypes."""

import pytest
import torch

from torch_tpu.conformance import jobs, report
from torch_tpu.conformance.__main__ import RATCHET
from torch_tpu.conformance.cases import settle

# Samples that are deprecated, or resize what they write to, are as PyTorch made them.
pytestmark = pytest.mark.filterwarnings("ignore")

ENTRIES = report.read_ratchet(RATCHET)
NAMES = [
    (kind, name) for kind, (table, _) in jobs.KINDS.items() for name in table if name in ENTRIES
]
# check -> samples
FEW = {"forward": 3, "out": 1, "inplace": 1, "backward": 1, "errors": 2, "steps": 4}
MORE = {"forward": 8, "noncontiguous": 3, "gradgrad": 2, "forward_ad": 2}


def failures(kind: str, name: str, check: str, dtype: str, limit: int) -> list[str]:
    table, home = jobs.KINDS[kind]
    if check == "errors":
        outcomes = home.errors(table[name], limit=limit)
    else:
        cases = home.cases(table[name], getattr(torch, dtype), check, limit)
        outcomes = (outcome for case in cases for outcome in settle(case, "strict"))
    return [
        f"{dtype} {o.check}, sample {o.index} {o.what}: {o.status}: {o.message}"
        for o in outcomes
        if o.status not in ("ok", "none")
    ]


def run(kind: str, name: str, wanted: dict[str, int], others: int, turn: int) -> None:
    """The wanted checks in float32, and forward in some other dtypes, beginning with the turn-th."""
    found = []
    for check, count in wanted.items():
        passed = report.entry(ENTRIES, name, check)
        first = "float32" if "float32" in passed else next(iter(passed), None)
        rest = [d for d in passed if d != first]
        dtypes = [first] if first else []
        if check == "forward" and rest:
            dtypes += [rest[(turn + i) % len(rest)] for i in range(min(others, len(rest)))]
        for dtype in dtypes:
            few = count if dtype == first else 1
            limit = min(few, passed[dtype]) or few
            found += failures(kind, name, check, dtype, limit)
    assert not found, "\n".join(found)


CASES = pytest.mark.parametrize(
    "turn, kind, name", [pytest.param(i, *case, id=case[1]) for i, case in enumerate(NAMES)]
)


@CASES
def test_passes_still(turn, kind, name):
    run(kind, name, FEW, 1, turn)


@pytest.mark.slow
@CASES
def test_more_passes_still(turn, kind, name):
    run(kind, name, MORE, 4, turn)
