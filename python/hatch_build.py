"""Builds libhbmfs with Go and puts it into the wheel, which then fits the platform that it was built on."""

import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LibraryHook(BuildHookInterface):
    """HBMFS_LIBRARY names a library that is built already; otherwise `make lib` in the clone around makes one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # the package finds what `make lib` leaves in the clone
        clone = Path(self.root).parent
        given = os.environ.get("HBMFS_LIBRARY")
        library = Path(given) if given else clone / "bin" / "libhbmfs.so"
        if not given:
            if not (clone / "Makefile").exists():
                raise SystemExit(f"{self.root} is not in a clone of hbmfs: build there, or name a built libhbmfs.so in HBMFS_LIBRARY")
            # What pip says in our environment is not for make, and a make around this one must not lend us its jobs.
            environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
            subprocess.run(["make", "-C", str(clone), "lib"], check=True, env=environment)
        build_data["force_include"][str(library)] = "hbmfs/libhbmfs.so"
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
