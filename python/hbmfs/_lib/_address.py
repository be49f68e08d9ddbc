"""Addresses of remote data, which only a mount reads."""

import os
import re
from typing import Any

from ..errors import InvalidError

_SCHEMES = ("s3", "gs", "az", "abfs", "abfss", "hf", "oci", "http", "https")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def refuse(path: Any) -> None:
    """Raises InvalidError if a path is an address such as s3://bucket/data, and says how to mount it."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    found = _ADDRESS.match(name) if isinstance(name, str) else None
    if found is None:
        return
    if found[1].lower() in _SCHEMES:
        import shlex  # seldom needed, as json is elsewhere: `import hbmfs` takes less time

        raise InvalidError(f"{name} is an address: mount it first, by `hbmfs mount {shlex.quote(name)} /mnt/data --cache-dir DIR`, and open /mnt/data")
    raise InvalidError(f"{name} is an address that hbmfs does not read: copy the data to a local directory, or to where a mount can read it ({', '.join(_SCHEMES)})")
