# SPDX-License-Identifier: Apache-2.0 - what the results of a conformance run say: summary, failures, docs, ratchet.
"""Reads results.jsonl (see coordinator.py for its rows). Needs neither torch nor a device."""

import collections
import json
import os

BAD = ("wrong", "error", "silent", "crash", "hang")
# Columns of docs/operators.md, and the words that stand for them in the ratchet.
DTYPES = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "complex64": "c64",
    "complex128": "c128",
    "complex32": "c32",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "bool": "bool",
    "float8_e4m3fn": "e4m3fn",
    "float8_e4m3fnuz": "e4m3fnuz",
    "float8_e5m2": "e5m2",
    "float8_e5m2fnuz": "e5m2fnuz",
}
KEY = ("kind", "name", "dtype", "mode", "check")


def key(row: dict) -> tuple:
    return tuple(row[k] for k in KEY) + ((row["of"],) if "of" in row else ())


def load(path: str) -> dict[tuple, dict]:
    """The last row of each (kind, name, dtype, mode, check). A line cut short by a kill is left out."""
    rows = {}
    if os.path.exists(path):
        with open(path) as f:
            for line in f:
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    continue
                rows[key(row)] = row
    return rows


def state(row: dict) -> str:
    """ "ok", "loose", "bad", or "none" when there was nothing to compare."""
    counts = row.get("counts", {})
    if any(counts.get(s) for s in BAD):
        return "bad"
    if counts.get("loose"):
        return "loose"
    return "ok" if counts.get("ok") else "none"


def kind_of(row: dict) -> str:
    """Foreach functions have OpInfos apart from the others."""
    if row["kind"] == "op" and row["name"].startswith("_foreach"):
        return "foreach"
    return row["kind"]


def _share(rows) -> dict:
    """How many of the rows that compared anything are right, and right within 1e-3."""
    states = collections.Counter(state(r) for r in rows)
    total = states["ok"] + states["loose"] + states["bad"]
    return {
        "total": total,
        "right": states["ok"],
        "loose": states["loose"],
        "percent": round(100 * states["ok"] / total, 2) if total else None,
        # The fewest that a row's operator was asked for; 0: all.
        "limit": min((r["limit"] for r in rows if r["limit"] and state(r) != "none"), default=0),
    }


def summary(rows: dict[tuple, dict]) -> dict:
    groups = collections.defaultdict(list)
    samples = collections.Counter()
    for row in rows.values():
        if row["kind"] in ("tpu", "programs"):
            continue
        kind = kind_of(row)
        if not row.get("remembered"):
            samples.update(row["counts"])
        if row["check"] == "agree":
            groups[f"{row['mode']}: {kind} agrees with strict"].append(row)
            continue
        if kind in ("module", "optimizer", "model"):
            groups[f"{row['mode']}: {kind} {row['dtype']} {row['check']}"].append(row)
            continue
        if row["dtype"] == "float32" or row["check"] == "errors":
            groups[f"{row['mode']}: {kind} {row['check']} float32"].append(row)
        if row["check"] != "errors":
            groups[f"{row['mode']}: {kind} {row['check']} all dtypes"].append(row)
    found = {"shares": {name: _share(group) for name, group in sorted(groups.items())}}
    found["samples"] = dict(samples)
    found["crashes"] = samples["crash"]
    found["hangs"] = samples["hang"]
    tpu = [r for r in rows.values() if r["kind"] == "tpu"]
    if tpu:
        found["tpu"] = {}
        for name in sorted({r["check"] for r in tpu}):
            counts = collections.Counter()
            for r in tpu:
                if r["check"] == name:
                    counts.update(r["counts"])
            found["tpu"][name] = {"programs": sum(counts.values()), "compiled": counts["ok"]}
    return found


def summary_text(found: dict) -> str:
    lines = []
    for name, share in found["shares"].items():
        if share["total"]:
            loose = f", {share['loose']} only within 1e-3" if share["loose"] else ""
            few = f" ({share['limit']} samples each)" if share["limit"] else ""
            lines.append(
                f"{share['percent']:6.2f} %  {name}: {share['right']} of {share['total']}{loose}{few}"
            )
    for name, counts in found.get("tpu", {}).items():
        lines.append(
            f"libtpu {name}: {counts['compiled']} of {counts['programs']} programs compile"
        )
    done = {k: v for k, v in sorted(found["samples"].items()) if v}
    lines.append("samples: " + ", ".join(f"{n} {s}" for s, n in done.items()))
    lines.append(f"crashes: {found['crashes']}, hangs: {found['hangs']}")
    return "\n".join(lines)


def failure_lines(rows: dict[tuple, dict]) -> list[str]:
    """One line a row that is not right, with the first reasons."""
    lines = []
    for row in sorted(rows.values(), key=key):
        if row["kind"] == "programs" or state(row) in ("ok", "none"):
            continue
        counts = row["counts"]
        compared = sum(counts.values()) - counts.get("none", 0)
        wrong = compared - counts.get("ok", 0)
        lines.append(f"{' '.join(key(row)[1:])}: {wrong} of {compared}")
        told = set()
        for index, status, message, what in row.get("failures", ()):
            if message[:60] not in told:
                told.add(message[:60])
                lines.append(f"    {status}: {message} [sample {index} {what}]")
    return lines


# ---- The ratchet: what once passed ----
#
# {name: {check: "f32 f64:4 ..."}}: right with all samples, or with 4 spread over them.


def read_ratchet(path: str) -> dict[str, dict[str, str]]:
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        return json.load(f)


def write_ratchet(path: str, entries: dict[str, dict[str, str]]) -> None:
    """One line a name, so that a difference shows what changed."""
    lines = [f" {json.dumps(n)}: {json.dumps(c)}" for n, c in sorted(entries.items())]
    with open(path, "w") as f:
        f.write("{\n" + ",\n".join(lines) + "\n}\n")


def entry(entries: dict, name: str, check: str) -> dict[str, int]:
    """{dtype: with how many samples it passed, 0 for all}."""
    words = {short: dtype for dtype, short in DTYPES.items()}
    found = {}
    for word in entries.get(name, {}).get(check, "").split():
        short, _, count = word.partition(":")
        found[words[short]] = int(count or 0)
    return found


def with_remembered(entries: dict, rows: dict[tuple, dict]) -> dict[tuple, dict]:
    """These results, and a right row for each that they lack and the ratchet says passed.

    A right row of fewer samples than once passed counts as one of as many.
    """
    found = dict(rows)
    for name, checks in entries.items():
        for check in checks:
            for dtype, limit in entry(entries, name, check).items():
                kind = "optimizer" if check == "steps" else "op"
                if name.startswith("nn.") and not name.startswith("nn.functional."):
                    kind = "module"
                of = (kind, name, dtype, "strict", check)
                row = found.get(of)
                if row is None:
                    row = dict(zip(KEY, of, strict=True))
                    found[of] = row | {"limit": limit, "counts": {"ok": 1}, "remembered": True}
                elif state(row) == "ok" and row["limit"] and not 0 < limit <= row["limit"]:
                    found[of] = row | {"limit": limit}
    return found


def _guarded(rows: dict[tuple, dict]):
    for row in rows.values():
        if row["kind"] in ("op", "module", "optimizer") and row["check"] != "agree":
            yield row


def regressions(entries: dict, rows: dict[tuple, dict]) -> list[str]:
    """What the ratchet says passed with these samples or more, and these results say does not."""
    lost = []
    for row in _guarded(rows):
        if state(row) not in ("bad", "loose"):
            continue
        passed = entry(entries, row["name"], row["check"]).get(row["dtype"])
        if passed is not None and (passed == 0 or 0 < row["limit"] <= passed):
            lost.append(f"{row['name']} {row['dtype']} {row['check']} ({row['mode']})")
    return lost


def updated(entries: dict, rows: dict[tuple, dict]) -> dict:
    """The ratchet with these results: what passes is added, what fails is taken out."""
    order = list(DTYPES)
    new = {name: dict(checks) for name, checks in entries.items()}
    for row in _guarded(rows):
        if row["mode"] != "strict" or state(row) == "none":
            continue
        name, check, dtype, limit = row["name"], row["check"], row["dtype"], row["limit"]
        passed = entry(new, name, check)
        if state(row) == "ok":
            before = passed.get(dtype)
            passed[dtype] = 0 if 0 in (before, limit) else max(before or 0, limit)
        else:
            passed.pop(dtype, None)
        text = " ".join(
            DTYPES[d] + (f":{passed[d]}" if passed[d] else "")
            for d in sorted(passed, key=order.index)
        )
        new.setdefault(name, {})[check] = text
    found = {n: {c: t for c, t in sorted(checks.items()) if t} for n, checks in new.items()}
    return {name: checks for name, checks in found.items() if checks}
