# SPDX-License-Identifier: Apache-2.0 - a process that runs conformance jobs and tells every sample's outcome.
"""Jobs come as JSON lines on stdin; on the descriptor that argument 1 names go JSON lines

    {"begin": [check, index]}       now running this sample
    {"outcome": {...}}              how it ended
    {"note": [check, {...}]}        something to keep with the check's results
    {"done": key, ...}              the job is finished

so that the parent knows which sample was running when this process dies.
"""

import json
import os
import sys
import time
import traceback
import warnings


def main() -> None:
    channel = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    warnings.simplefilter("ignore")

    def tell(**message) -> None:
        channel.write(json.dumps(message) + "\n")

    from torch_tpu.conformance import jobs

    tell(ready=True)
    for line in sys.stdin:
        job = json.loads(line)
        start = time.monotonic()
        try:
            jobs.run(job, tell)
        except Exception as error:
            traceback.print_exc()
            sys.stderr.flush()
            tell(failed=f"{type(error).__name__}: {error}".split("\n")[0][:300])
        tell(done=True, seconds=round(time.monotonic() - start, 3), rss=_rss())
    # Nothing is left to do that is worth the time of an orderly end.
    channel.flush()
    os._exit(0)


def _rss() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
