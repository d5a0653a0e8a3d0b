# SPDX-License-Identifier: Apache-2.0 - torch-tpu plan: layouts of a training step for a pod that is not here.
import json

import pytest

from torch_tpu import command, plan
from torch_tpu._decoder import CONFIGS, Config, Layout

pytest.importorskip("libtpu", reason="compiling for a TPU needs libtpu")

DENSE = Config(1, 256, 512, 8, 4, 1024, head=32)
MIXTURE = Config(1, 256, 128, 8, 4, 1024, head=32, experts=8, chosen=2)


def test_layouts_divide_devices_model_and_batch():
    for c in (DENSE, MIXTURE):
        found = list(plan.layouts(c, 16, batch=32, length=256))
        assert len(set(found)) == len(found)
        for la in found:
            assert la.devices == 16 and 32 % la.batches == 0 and 256 % la.context == 0
            assert c.kv_heads % la.tensor == 0
    assert Layout(shard=16) in list(plan.layouts(DENSE, 16, 32, 256))
    assert Layout(shard=2, expert=8) in list(plan.layouts(MIXTURE, 16, 32, 256))
    # More devices than sequences: something else must be divided.
    assert all(la.context * la.tensor >= 4 for la in plan.layouts(DENSE, 16, batch=4, length=256))


def test_sizes_of_the_models_are_those_of_their_names():
    for name, c in CONFIGS.items():
        billions = (c.dense_weights + c.expert_weights) / 1e9
        assert billions == pytest.approx(
            float(name.split("-")[1 if "qwen" in name else 2][:-1]), rel=0.06
        )
    big = CONFIGS["qwen3-235b-a22b"]
    assert big.dense_weights + big.expert_weights == pytest.approx(235e9, rel=0.01)
    assert big.active_weights == pytest.approx(22e9, rel=0.05)


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        (DENSE, Layout(context=2, tensor=2, recompute=True)),
        (MIXTURE, Layout(shard=2, expert=2)),
    ],
    ids=str,
)
def test_a_layout_is_compiled(config, layout):
    said = []
    found = plan.plan(config, "v5e:2x2", 16, 256, layout=layout, say=said.append)
    (tried,) = found.tried
    assert tried.error == "" and tried.fits
    assert said[-1].startswith("[1/1") and said[-1].endswith("fits")
    kinds = {c["kind"] for c in tried.report["collectives"]}
    assert ("all_to_all" in kinds) == (layout.expert > 1)
    assert ("reduce_scatter" in kinds) == (layout.dense_parts > layout.tensor)
    # 6 flops for each weight and token, and attention's; twice forward where it is computed again.
    tokens = 16 * 256 // 4 * layout.tensor
    least = 6 * config.active_weights * tokens / layout.tensor
    assert least < tried.report["flops"] < 3 * least


def test_the_best_comes_first(tmp_path, capsys):
    small = Config(1, 128, 256, 4, 4, 512, head=32)
    found = plan.plan(small, "v5e:2x2", 4, 128, tries=2, html=tmp_path / "pages")
    assert [t.fits for t in found.tried] == [True, True]
    assert found.tried[0].seconds <= found.tried[1].seconds
    assert len(list((tmp_path / "pages").iterdir())) == 2
    assert len(json.loads(found.json(tmp_path / "plan.json"))["tried"]) == 2
    assert "GiB" in str(found)


def test_errors(capsys):
    with pytest.raises(ValueError, match="no layout divides 3 sequences"):
        plan.plan(MIXTURE, "v5e:2x2", 3, 255)
    with pytest.raises(ValueError, match="takes 2 devices, v5e:2x2 has 4"):
        plan.plan(DENSE, "v5e:2x2", 4, 256, layout=Layout(shard=2))
    with pytest.raises(ValueError, match="'pipeline=2' is no part of a layout"):
        plan.parse_layout("shard=2,pipeline=2")
    assert command.main(["plan", "--model", "gpt-9", "--topology", "v5e:2x2", "--batch", "4"]) == 1
    assert "qwen3-8b" in capsys.readouterr().err
