# SPDX-License-Identifier: Apache-2.0 - a few of the models of docs/models.md, eager and compiled, against CPU.
import pytest

pytest.importorskip("transformers", reason="needs transformers (pip install transformers)")
pytest.importorskip("diffusers", reason="needs diffusers (pip install diffusers)")

from torch_tpu.conformance import docs, jobs, models, report, zoo
from torch_tpu.conformance.coordinator import Rows

# A decoder, experts, a recurrence, an encoder, an encoder and decoder, pictures, diffusion.
FEW = ["Llama", "Qwen3Moe", "FalconMamba", "Bert", "T5", "ViT", "AutoencoderTiny"]


def outcomes(name: str, mode: str, checks=models.CHECKS) -> dict:
    """The rows that the conformance command would write, by check."""
    job = {"kind": "model", "name": name, "dtype": "float32", "mode": mode, "samples": 0}
    rows = Rows({**job, "checks": list(checks)})

    def tell(outcome=None, note=None, **_):
        if outcome is not None:
            rows.add(*outcome)
        if note is not None:
            rows.checks[note[0]]["note"] = note[1]

    jobs.run(rows.job, tell)
    return {check: rows.result(check, 0.0) for check in checks}


@pytest.mark.parametrize("mode", ["strict", "compile"])
@pytest.mark.parametrize("name", FEW)
def test_equals_cpu(name, mode):
    for check, row in outcomes(name, mode).items():
        assert row["counts"] == {"ok": 1}, row.get("failures")
        if mode == "compile":
            note = row["note"]
            assert not note["breaks"] and not note["between"]
            assert set(note["graphs"].values()) == {1}
            assert len(note["graphs"]) == (1 if check == "forward" else 2)


def test_every_model_has_a_class_of_its_own():
    classes = [model.cls for model in zoo.by_name.values()]
    assert len(set(classes)) == len(classes) >= 60


def test_table(tmp_path):
    rows = {}
    for mode in ("strict", "compile"):
        for check in models.CHECKS:
            row = {"kind": "model", "name": "Bert", "dtype": "float32", "mode": mode}
            row |= {"check": check, "limit": 0, "counts": {"ok": 1}, "worst": 2e-7}
            if mode == "compile":
                row["note"] = {"graphs": {"forward": 2}, "breaks": {"why": 1}, "between": {"op": 3}}
            rows[report.key(row)] = row
    docs.write_models(tmp_path / "models.md", rows)
    text = (tmp_path / "models.md").read_text()
    assert "| Bert | `transformers.BertForMaskedLM` | ✓ | ✓ | ✓ | ✓ | 2+3 | 2e-07 |  |  |" in text
    assert "Bert: graph break: why" in text and "`op` runs by itself (3 times)" in text
