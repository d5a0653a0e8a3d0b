# SPDX-License-Identifier: Apache-2.0 - `python -m examples.demo`: runs the parts and checks what they promise.
"""Trains on real digits, talks to a real language model, and says what ran where.

    python -m examples.demo                    both parts, as `make demo` does
    python -m examples.demo digits             only the training
    python -m examples.demo chat               only the language model
    python -m examples.demo talk               type to the language model yourself
    python -m examples.demo --device cpu       the same without the device

Exits with 1 when a promise is missed: 97 % test accuracy, and the same text as on the CPU.
"""

import argparse
import sys
import warnings
from pathlib import Path

import torch


def parse():
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", nargs="?", choices=["all", "digits", "chat", "talk"], default="all")
    parser.add_argument("--device", default="tpu", help="where to run (default: tpu)")
    parser.add_argument("--tokens", type=int, default=64, help="length of an answer (default: 64)")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for the picture")
    parser.add_argument(
        "--mode",
        choices=["strict", "debug", "fuse"],
        help="when the device runs its operations (default: the library's, strict)",
    )
    return parser.parse_args()


def set_mode(mode: str) -> None:
    """Strict, Debug or DeferAndFuse, by the names torch.tpu gives them."""
    modes = torch.tpu.EagerMode
    torch.tpu.set_eager_mode(
        {
            "strict": modes.DEFER_NEVER,
            "debug": modes.DEFER_NEVER_AND_LAUNCH_BLOCKING,
            "fuse": modes.DEFER_AND_FUSE,
        }[mode]
    )


def main() -> int:
    options = parse()
    warnings.filterwarnings("ignore", category=FutureWarning)  # of the packages the demo uses
    try:
        torch.empty(0, device=options.device)
    except RuntimeError as error:
        print(f"Device {options.device!r} cannot be used here: {error}", file=sys.stderr)
        return 2
    if options.mode and options.device != "cpu":
        set_mode(options.mode)
    if options.part == "talk":
        from examples.demo import chat

        chat.talk(options.device, options.tokens)
        return 0

    parts = []
    if options.part in ("all", "digits"):
        from examples.demo import digits

        print("\nPart 1: learning to read handwritten digits")
        parts.append(digits.main(options.device, options.out / "digits_loss.png"))
    if options.part in ("all", "chat"):
        from examples.demo import chat

        print("\nPart 2: talking to a language model")
        parts.append(chat.main(options.device, options.tokens))

    from examples.demo import report

    report.main(options.device, sum(seconds for _, seconds in parts))
    missed = [promise for promises, _ in parts for promise in promises]
    for promise in missed:
        print(f"\nMISSED: {promise}", file=sys.stderr)
    if not missed:
        print("\nEverything that was promised held.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
