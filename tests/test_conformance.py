# SPDX-License-Identifier: Apache-2.0 - the conformance command: its judgement, its workers' crashes, its ratchet.
import subprocess
import sys

import pytest
import torch

from torch_tpu.conformance import report
from torch_tpu.conformance.__main__ import unfinished
from torch_tpu.conformance.compare import Tolerance, judge
from torch_tpu.conformance.coordinator import Coordinator
from torch_tpu.conformance.samples import copy_like, spread

EXACT = Tolerance(1.3e-6, 1e-5)


@pytest.mark.parametrize(
    "mine, other, verdict",
    [
        ([1.0, 2.0], [1.0, 2.0], "ok"),
        ([1.0, 2.0005], [1.0, 2.0], "loose"),
        ([1.0, 2.1], [1.0, 2.0], "wrong"),
        ([1.0, float("nan")], [1.0, float("nan")], "ok"),
        ([1.0, float("nan")], [1.0, 2.0], "wrong"),
        ([1.0, float("inf")], [1.0, -float("inf")], "wrong"),
    ],
)
def test_judge(mine, other, verdict):
    assert judge(torch.tensor(mine, device="tpu"), torch.tensor(other), EXACT)[0] == verdict


def test_form_is_judged_before_values():
    right = torch.ones(2)
    for wrong in (torch.ones(2), torch.ones(1, 2, device="tpu"), torch.ones(2).long().to("tpu")):
        assert judge(wrong, right, EXACT)[0] == "wrong"
    assert judge([right.to("tpu")], [right, right], EXACT)[0] == "wrong"


def test_nearer_to_the_precise_result_than_the_cpu_is_right():
    precise = torch.tensor([1.0], dtype=torch.float64)
    mine, other = torch.tensor([1.01], device="tpu"), torch.tensor([1.02])
    assert judge(mine, other, EXACT, lambda: precise)[0] == "ok"
    assert judge(other.to("tpu"), mine.cpu(), EXACT, lambda: precise)[0] == "wrong"


def test_copies_keep_strides_and_what_is_behind_a_view():
    base = torch.arange(20.0)
    for x in (base[2:11:3], base.view(4, 5).t()[1:], base[:1].expand(3, 4), base.view(4, 5)[:0]):
        y = copy_like(x, "tpu")
        assert (y.shape, y.stride()) == (x.shape, x.stride())
        assert torch.equal(y.cpu(), x)
    behind = copy_like(base[4:6], "tpu").as_strided((3,), (1,), 0)
    assert behind.tolist() == [0, 1, 2]


def test_fewer_samples_are_among_more():
    every = list(range(37))
    for count in range(1, 40):
        assert len(spread(every, count)) == min(count, 37)
        assert set(spread(every, count)) <= set(spread(every, count + 1))


WORKER = """
import json, os, sys, time
out = os.fdopen(int(sys.argv[1]), "w", buffering=1)
tell = lambda **m: out.write(json.dumps(m) + "\\n")
tell(ready=True)
for line in sys.stdin:
    job = json.loads(line)
    for check in job["checks"]:
        for i in range(3):
            if i in job.get("skip", {}).get(check, ()):
                continue
            tell(begin=[check, i])
            if job["name"] == "crash" and i == 1:
                os.abort()
            if job["name"] == "hang" and i == 1:
                time.sleep(60)
            tell(outcome=[check, i, "ok", 0.0, "", ""])
        tell(check=check)
    tell(done=True, rss=0)
"""


def job(name, checks=("forward", "backward")):
    return {
        "kind": "op",
        "name": name,
        "dtype": "float32",
        "mode": "strict",
        "checks": list(checks),
        "samples": 0,
    }


def test_crash_and_hang_cost_one_sample_each(tmp_path):
    results = str(tmp_path / "results.jsonl")
    jobs = [job(name) for name in ("good", "crash", "hang", "fine")]
    Coordinator(jobs, results, workers=2, timeout=1, command=[sys.executable, "-c", WORKER]).run()
    rows = report.load(results)
    counts = {(r["name"], r["check"]): r["counts"] for r in rows.values()}
    assert len(counts) == 8
    for check in ("forward", "backward"):
        assert counts["good", check] == counts["fine", check] == {"ok": 3}
        assert counts["crash", check] == {"ok": 2, "crash": 1}
        assert counts["hang", check] == {"ok": 2, "hang": 1}
    found = report.summary(rows)
    assert (found["crashes"], found["hangs"]) == (2, 2)


def test_workers_that_cannot_start_are_told(tmp_path):
    run = Coordinator([job("a")], str(tmp_path / "r"), command=[sys.executable, "-c", "1 / 0"])
    with pytest.raises(RuntimeError, match="do not start"):
        run.run()


def row(name, counts, limit=0, check="forward"):
    return {**job(name), "check": check, "counts": counts, "limit": limit, "worst": 0.0}


def keyed(*rows):
    return {report.key(r): r for r in rows}


def test_ratchet_only_lets_go_of_what_it_is_told_to():
    old = report.updated({}, keyed(row("a", {"ok": 9}), row("b", {"ok": 4}, limit=4)))
    assert old == {"a": {"forward": "f32"}, "b": {"forward": "f32:4"}}
    fails = keyed(row("a", {"ok": 8, "wrong": 1}), row("b", {"ok": 8, "wrong": 1}))
    # b passed four samples; that a fifth fails is no regression.
    assert report.regressions(old, fails) == ["a float32 forward (strict)"]
    assert report.regressions(old, keyed(row("b", {"wrong": 1, "ok": 1}, limit=2)))
    assert not report.regressions(old, keyed(row("c", {"wrong": 1})))
    assert report.updated(old, fails) == {}
    # Few samples do not forget that all passed.
    assert report.updated(old, keyed(row("a", {"ok": 2}, limit=2)))["a"] == {"forward": "f32"}


def test_what_once_passed_stands_in_for_what_was_not_run():
    rows = keyed(row("a", {"ok": 2}, limit=2), row("b", {"wrong": 1}))
    found = report.with_remembered(
        {"a": {"forward": "f32:4"}, "b": {"forward": "f32"}, "nn.C": {"forward": "f64"}}, rows
    )
    kinds = {k[:3]: (report.state(r), r["limit"]) for k, r in found.items()}
    assert kinds == {
        ("op", "a", "float32"): ("ok", 4),
        ("op", "b", "float32"): ("bad", 0),
        ("module", "nn.C", "float64"): ("ok", 0),
    }
    assert report.summary(found)["samples"] == report.summary(rows)["samples"]


def test_resume_runs_what_is_missing():
    done = keyed(row("a", {"ok": 3}), row("b", {"ok": 3}, check="backward"))
    left = unfinished([job("a"), job("b", ["backward"]), job("c")], done)
    assert [(j["name"], j["checks"]) for j in left] == [
        ("a", ["backward"]),
        ("c", ["forward", "backward"]),
    ]


def test_command_line(tmp_path):
    command = [sys.executable, "-m", "torch_tpu.conformance", "--workers", "1", "--samples", "2"]
    command += ["--op", "trunc", "--dtype", "float32", "--check", "forward,inplace"]
    run = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "strict: op inplace float32: 1 of 1" in run.stdout
    assert {r["check"] for r in report.load(tmp_path / "results.jsonl").values()} == {
        "forward",
        "inplace",
    }
