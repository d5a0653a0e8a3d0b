# SPDX-License-Identifier: Apache-2.0 - torch_tpu.explain: what the report of a compiled function holds.
import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch

import torch_tpu
from torch_tpu import _hlo

DEVICE = "tpu"


def model(x, w):
    h = torch.relu(x @ w)
    return (h * 2 + 1).sum(-1)


@pytest.fixture(scope="module")
def report():
    return torch_tpu.explain(
        model, torch.ones(16, 32, device=DEVICE), torch.ones(32, 8, device=DEVICE)
    )


def test_one_graph_is_one_program_with_its_numbers(report):
    (graph,) = report.graphs
    (program,) = graph.programs
    assert graph.kind == "inference" and not graph.between and not report.breaks
    assert "stablehlo.dot_general" in program.stablehlo
    assert program.flops >= 2 * 16 * 32 * 8
    assert program.bytes_accessed >= 4 * (16 * 32 + 32 * 8)
    assert program.memory["arguments"] == 4 * (16 * 32 + 32 * 8)
    assert program.memory["outputs"] == 4 * 16
    assert program.compile_seconds > 0


def test_the_optimized_program_is_read(report):
    (program,) = report.graphs[0].programs
    entry = program.module.entry
    shapes = {i.shape for i in entry.instructions if i.opcode == "parameter"}
    assert {"f32[16,32]", "f32[32,8]"} <= shapes
    ids = {i.id for i in entry.instructions}
    assert entry.root in ids and all(o in ids for i in entry.instructions for o in i.operands)
    opcodes = {i.opcode for c in program.module.computations for i in c.instructions}
    assert "maximum" in opcodes or "custom-call" in opcodes
    for fusion in program.fusions():
        assert fusion["kind"].startswith("k") and fusion["ops"]
    assert program.optimized.startswith("HloModule")


def test_operators_are_counted_by_line(report):
    first = model.__code__.co_firstlineno
    lines = {int(where.rpartition(":")[2]): line for where, line in report.graphs[0].lines.items()}
    assert lines[first + 1].flops == 2 * 16 * 32 * 8
    assert lines[first + 1].ops == {"aten.mm": 1, "aten.relu": 1}
    assert lines[first + 2].flops == 0 and sum(lines[first + 2].ops.values()) == 3


def test_text_and_page(report, tmp_path):
    text = str(report)
    assert text == report.text
    for word in ("aten.mm", "stablehlo.dot_general", "HloModule", "bytes accessed", "compile time"):
        assert word in text
    report.html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    (svg,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    drawn = ElementTree.fromstring(svg)
    boxes = drawn.findall(".//{http://www.w3.org/2000/svg}rect")
    assert len(boxes) >= 3
    assert "<script" not in page and "src=" not in page and "href=" not in page


def test_backward_and_what_is_run_between_programs():
    def step(x, w):
        y = torch.relu(x @ w)
        (y[y > 0].sum()).backward()

    w = torch.ones(32, 8, device=DEVICE, requires_grad=True)
    report = torch_tpu.explain(step, torch.ones(16, 32, device=DEVICE), w)
    assert w.grad is not None
    kinds = [g.kind for g in report.graphs]
    assert "forward" in kinds and "backward" in kinds
    assert "aten." in str(report)


def test_nothing_on_the_device():
    with pytest.raises(ValueError, match="does nothing on the device"):
        torch_tpu.explain(lambda x: x + 1, torch.ones(2))


def test_bytes_that_are_no_module():
    for data in (b"", b"\xff" * 20, b"\x1a\x05ab", bytes(range(64))):
        with pytest.raises(ValueError, match="no HLO module"):
            _hlo.parse(data)
