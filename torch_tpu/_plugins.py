# SPDX-License-Identifier: Apache-2.0 - finds the folders where PJRT plugin packages are installed.
"""The C++ side knows the plugins' file names and chooses; only Python knows where packages are."""

import os
from importlib.util import find_spec

# Top-level packages that carry a plugin file. find_spec does not import a top-level package, which
# matters: libtpu, for one, does things at import that must not happen here.
PACKAGES = ("libtpu", "fastatomstruct_xla_cpu", "lammps_jax_pjrt_cpu", "xla_plugins")


def search_paths() -> list[str]:
    """The folders (mostly site-packages) that hold a plugin package, without repeats."""
    found: dict[str, None] = {}
    for package in PACKAGES:
        try:
            spec = find_spec(package)
        except (ImportError, ValueError):  # a broken or half-initialised module of that name
            continue
        for location in (spec.submodule_search_locations or ()) if spec else ():
            found[os.path.dirname(os.path.abspath(location))] = None
    return list(found)
