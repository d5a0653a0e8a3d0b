# SPDX-License-Identifier: Apache-2.0 - the shared root of compiled programs where it is a URL (fsspec).
"""`TORCH_TPU_CACHE_ROOT` may be a folder, which the compiled part reads itself, or any URL that fsspec
knows (`gs://bucket/programs`, `s3://...`, `memory://...`). fsspec comes with torch; the packages
for the stores (gcsfs, s3fs) are the user's."""

import os


def connect(extension) -> None:
    """Tells the compiled part how to get and put files at the root, if it is a URL. Opens nothing
    before the first program is looked for."""
    url = os.environ.get("TORCH_TPU_CACHE_ROOT", "")
    if "://" in url:
        extension._set_remote_root(*_functions(url.rstrip("/")))


def _functions(url: str):
    def open_root():
        import fsspec

        return fsspec.core.url_to_fs(url)

    def fetch(name: str) -> bytes | None:
        files, path = open_root()
        try:
            return files.cat_file(f"{path}/{name}")
        except FileNotFoundError:
            return None

    def store(name: str, contents: bytes) -> None:
        files, path = open_root()
        files.makedirs(path, exist_ok=True)
        # Object stores show a new object when it is whole; elsewhere a rename does the same.
        temporary = f"{path}/.{name}.{os.getpid()}.tmp"
        files.pipe_file(temporary, contents)
        files.mv(temporary, f"{path}/{name}")

    return fetch, store
