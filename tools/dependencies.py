# SPDX-License-Identifier: Apache-2.0 - prints groups of dependencies of pyproject.toml for pip.
"""Usage: dependencies.py GROUP...

`run` is what every user of the package needs; the others are names of extras. So pyproject.toml
stays the one list.
"""

import sys
import tomllib
from pathlib import Path


def main(groups: list[str]) -> int:
    pyproject = Path(__file__).parent.parent / "pyproject.toml"
    project = tomllib.loads(pyproject.read_text())["project"]
    lists = {"run": project["dependencies"], **project["optional-dependencies"]}
    for group in groups:
        if group not in lists:
            print(f"no group {group!r}; there are: {', '.join(lists)}", file=sys.stderr)
            return 2
        print("\n".join(lists[group]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
