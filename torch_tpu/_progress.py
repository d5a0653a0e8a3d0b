# SPDX-License-Identifier: Apache-2.0 - a line on stderr that tells that a long compilation is alive.
"""The device's compilers have their stderr captured while they work, so the line goes to a copy of it."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

_EVERY = 1.0  # seconds; on a terminal
_EVERY_IN_A_LOG = 30.0


def resident() -> int:
    """Bytes of memory that this process has; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@contextlib.contextmanager
def shown(what: str, always: bool = False) -> Iterator[None]:
    """While the block runs: `what`, for how long, and the process's memory. On a terminal one line that is
    wiped out at the end; elsewhere nothing, or (always) a line every half a minute."""
    try:
        terminal = sys.stderr.isatty()
        stream = os.dup(sys.stderr.fileno()) if terminal or always else -1
    except (AttributeError, OSError, ValueError):  # there is no stderr, or it is no file
        stream = -1
    if stream < 0:
        yield
        return
    done = threading.Event()
    begin = time.monotonic()

    def tell() -> None:
        while not done.wait(_EVERY if terminal else _EVERY_IN_A_LOG):
            seconds = int(time.monotonic() - begin)
            text = (
                f"{what}: {seconds // 60}:{seconds % 60:02}, {resident() / 2**30:.1f} GiB of memory"
            )
            with contextlib.suppress(OSError):
                os.write(stream, (f"\r{text}\x1b[K" if terminal else f"{text}\n").encode())
        if terminal:
            with contextlib.suppress(OSError):
                os.write(stream, b"\r\x1b[K")

    thread = threading.Thread(target=tell, name="torch_tpu progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        os.close(stream)
