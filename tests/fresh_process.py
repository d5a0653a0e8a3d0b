# SPDX-License-Identifier: Apache-2.0 - runs code in a new interpreter, for tests of what a process does once.
import os
import subprocess
import sys


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs code with more environment variables; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done


def python(code: str, **environment: str) -> str:
    """Runs code, which must say nothing on stderr, and returns what it prints."""
    done = run(code, **environment)
    assert done.stderr == ""
    return done.stdout.strip()
