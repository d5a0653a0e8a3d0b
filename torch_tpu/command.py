# SPDX-License-Identifier: Apache-2.0 - the command `torch-tpu`: the cache of compiled programs, and compiling ahead of time.
"""`torch-tpu cache list | size | prune | clear | pack | unpack`, `torch-tpu aot script.py` and `torch-tpu plan`.

A *warm pack* is a tar file of cache entries. Made on one machine, it spares another of the same kind
(plugin, TPU generation or instruction set, compile options) all compilation:

    torch-tpu cache pack programs.tar        # here
    torch-tpu cache unpack programs.tar      # there
"""

import argparse
import io
import os
import re
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".tpux"
_NAME = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}\.tpux")


@dataclass(frozen=True)
class Entry:
    path: Path
    size: int  # bytes
    used: float  # seconds since the epoch


def default_directory() -> Path:
    """Where the device keeps compiled programs on this machine (see README, environment)."""
    from torch_tpu import _C

    directory = _C._cache_directory()
    if not directory:
        raise SystemExit("torch-tpu: the disk cache is turned off (TORCH_TPU_CACHE=0)")
    return Path(directory)


def entries(directory: Path) -> list[Entry]:
    """The most recently used first."""
    found = []
    for path in directory.glob(f"*{SUFFIX}") if directory.is_dir() else ():
        try:
            stat = path.stat()
        except FileNotFoundError:  # another process pruned it
            continue
        found.append(Entry(path, stat.st_size, stat.st_mtime))
    return sorted(found, key=lambda e: e.used, reverse=True)


def describe_size(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def decode(contents: bytes) -> tuple[str, str] | None:
    """(plugin identity, what the program is) of an entry that is whole, None for a damaged one."""
    from torch_tpu import _C

    return _C._decode_cache_entry(contents)


def list_entries(directory: Path, _) -> int:
    for entry in entries(directory):
        decoded = decode(entry.path.read_bytes())
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        about = decoded[1] if decoded else "DAMAGED (it will be made again when it is needed)"
        print(f"{entry.path.stem[:12]}  {describe_size(entry.size):>9}  {used}  {about}")
    return size(directory, _)


def size(directory: Path, _) -> int:
    found = entries(directory)
    total = describe_size(sum(e.size for e in found))
    print(f"{len(found)} programs, {total}, in {directory}")
    return 0


def prune(directory: Path, args) -> int:
    """Removes the least recently used until `args.to` megabytes remain."""
    left = args.to * 1_000_000
    removed = []
    for entry in entries(directory):
        left -= entry.size
        if left < 0:
            entry.path.unlink(missing_ok=True)
            removed.append(entry)
    print(f"removed {len(removed)} programs, {describe_size(sum(e.size for e in removed))}")
    return size(directory, args)


def clear(directory: Path, args) -> int:
    args.to = 0
    return prune(directory, args)


def pack(directory: Path, args) -> int:
    count = total = 0
    temporary = args.file.with_name(args.file.name + f".{os.getpid()}.tmp")
    with tarfile.open(temporary, "w") as tar:
        for entry in entries(directory):
            if args.days is not None and time.time() - entry.used > args.days * 86400:
                continue
            try:
                contents = entry.path.read_bytes()
            except FileNotFoundError:
                continue
            if decode(contents) is None:
                continue
            info = tarfile.TarInfo(entry.path.name)
            info.size, info.mtime = len(contents), int(entry.used)
            tar.addfile(info, io.BytesIO(contents))
            count, total = count + 1, total + len(contents)
    temporary.replace(args.file)
    print(f"packed {count} programs, {describe_size(total)}, into {args.file}")
    return 0


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in tar:
        file = tar.extractfile(member) if member.isfile() else None
        if file is not None:
            yield member.name, file.read()


def unpack(directory: Path, args) -> int:
    """Only whole entries with an entry's name are taken; those that are here already stay."""
    directory.mkdir(parents=True, exist_ok=True)
    new = known = refused = 0
    try:
        with tarfile.open(args.file) as tar:
            for name, contents in _members(tar):
                if not _NAME.fullmatch(name) or decode(contents) is None:
                    refused += 1
                elif (directory / name).exists():
                    known += 1
                else:
                    temporary = directory / f".{name}.{os.getpid()}.tmp"
                    temporary.write_bytes(contents)
                    temporary.replace(directory / name)
                    new += 1
    except (OSError, tarfile.TarError) as error:
        print(f"torch-tpu: {args.file} is no pack: {error}", file=sys.stderr)
        return 1
    print(f"unpacked {new} programs into {directory}; {known} were there already")
    if refused:
        print(f"{refused} files of the pack were no whole entries and were left out")
    return 0


def compile_ahead(args) -> int:
    """Compiles what a script's `build()` returns for each topology; 1 if one refuses it or is too small."""
    from torch_tpu import aot

    failed = 0
    for topology in args.topology.split(","):
        print(f"{args.script.name}: compiling for {topology} ...", file=sys.stderr, flush=True)
        try:
            with aot.abstract(topology):
                step, inputs = aot.load(args.script)
                report = aot.compile(step, inputs, progress=True)
        except RuntimeError as error:
            print(f"torch-tpu: {topology}: {error}", file=sys.stderr)
            failed = 1
            continue
        print(report)
        if not report.fits:
            failed = 1
        stem = f"{args.script.stem}-{topology.replace(':', '-')}"
        for directory, suffix, write in (
            (args.json, "json", report.json),
            (args.html, "html", report.html),
            (args.output, "executable", report.save),
        ):
            if directory is not None:
                directory.mkdir(parents=True, exist_ok=True)
                write(directory / f"{stem}.{suffix}")
    return failed


def plan_layout(args) -> int:
    """Looks for the parallel layout of a model's training step; 1 if no layout fits."""
    from torch_tpu import plan

    try:
        found = plan.plan(
            args.model,
            args.topology,
            args.batch,
            args.seq,
            tries=args.tries,
            jobs=args.jobs,
            minutes=args.minutes,
            layout=plan.parse_layout(args.layout) if args.layout else None,
            html=args.html,
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
    except (ValueError, RuntimeError) as error:
        print(f"torch-tpu: {error}", file=sys.stderr)
        return 1
    print(found)
    if args.json is not None:
        found.json(args.json)
    return 0 if any(t.fits for t in found.tried) else 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="torch-tpu")
    commands = parser.add_subparsers(dest="command", required=True)
    ahead = commands.add_parser(
        "aot", help="compile for TPUs that are not here, and weigh the program"
    )
    ahead.add_argument("script", type=Path, help="its build() returns (function, inputs)")
    ahead.add_argument("--topology", default="v6e:1x1x1", help='such as "v5e:1x1x1,tpu7x:1x1x1"')
    for option, what in (("json", "reports"), ("html", "pages"), ("output", "executables")):
        ahead.add_argument(f"--{option}", type=Path, metavar="DIR", help=f"write {what} there")
    ahead.set_defaults(run=compile_ahead)
    planned = commands.add_parser(
        "plan", help="which parallel layout of a training step fits a pod, and which is fastest"
    )
    planned.add_argument(
        "--model", required=True, help="such as qwen3-8b; an unknown one lists all"
    )
    planned.add_argument("--topology", required=True, help='such as "v6e:16x16"')
    planned.add_argument("--batch", type=int, required=True, help="sequences in a step, in all")
    planned.add_argument("--seq", type=int, default=4096, help="tokens in each (4096)")
    planned.add_argument("--layout", help='only this one: "shard=64,tensor=4,recompute"')
    planned.add_argument("--tries", type=int, default=6, help="how many layouts to compile (6)")
    planned.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    planned.add_argument("--minutes", type=float, default=60, help="the most for each (60)")
    planned.add_argument("--json", type=Path, metavar="FILE", help="write the plan there")
    planned.add_argument(
        "--html", type=Path, metavar="DIR", help="write a page of each layout there"
    )
    planned.set_defaults(run=plan_layout)
    cache = commands.add_parser("cache", help="compiled programs on disk")
    cache.add_argument("--dir", type=Path, help="another folder than the device's own")
    actions = cache.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="each program").set_defaults(run=list_entries)
    actions.add_parser("size", help="how many, how large").set_defaults(run=size)
    action = actions.add_parser("prune", help="remove the least recently used")
    action.add_argument("--to", type=float, required=True, metavar="MB", help="what may stay")
    action.set_defaults(run=prune)
    actions.add_parser("clear", help="remove all").set_defaults(run=clear)
    action = actions.add_parser("pack", help="make a warm pack for other machines")
    action.add_argument("file", type=Path)
    action.add_argument("--days", type=float, help="only what was used in the last DAYS days")
    action.set_defaults(run=pack)
    action = actions.add_parser("unpack", help="take over a warm pack")
    action.add_argument("file", type=Path)
    action.set_defaults(run=unpack)
    args = parser.parse_args(argv)
    if args.command != "cache":
        return args.run(args)
    return args.run(args.dir or default_directory(), args)
