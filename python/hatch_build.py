"""Puts libhbmfs and the hbmfs command into the wheel, and gives all three one version.

Make builds both for the platform that it runs on. A release names ready ones, and the platforms that they fit, in the environment:
HBMFS_LIBRARY, HBMFS_BINARY, HBMFS_PLATFORM (such as manylinux_2_17_x86_64) and HBMFS_VERSION.
"""

import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CLONE = Path(__file__).resolve().parent.parent


def version() -> str:
    given = os.environ.get("HBMFS_VERSION")
    return (given or subprocess.run([str(CLONE / "tools" / "version.sh")], check=True, capture_output=True, text=True).stdout.strip()).removeprefix("v")


class ProgramsHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # the package finds the files that `make build lib` leaves in the clone
        library = self._made("HBMFS_LIBRARY", "lib", "libhbmfs.so")
        command = self._made("HBMFS_BINARY", "build", "hbmfs")
        build_data["force_include"][str(library)] = "hbmfs/libhbmfs.so"
        build_data["force_include"][self._version()] = "hbmfs/_version.py"
        build_data["shared_scripts"][str(command)] = "hbmfs"
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + (os.environ.get("HBMFS_PLATFORM") or sysconfig.get_platform().replace("-", "_").replace(".", "_"))

    def _made(self, variable: str, target: str, name: str) -> Path:
        """A program that the environment names, or that make builds in the clone around."""
        given = os.environ.get(variable)
        if given:
            return Path(given)
        if not (CLONE / "Makefile").exists():
            raise SystemExit(f"{self.root} is not in a clone of hbmfs: build there, or name a built {name} in {variable}")
        # pip's messages in our environment are not for make, and a make around this one must not lend us its jobs.
        environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        subprocess.run(["make", "-C", str(CLONE), target], check=True, env=environment)
        return CLONE / "bin" / name

    def _version(self) -> str:
        self._made_for = tempfile.TemporaryDirectory()  # it goes with this hook, after the build
        path = Path(self._made_for.name) / "_version.py"
        text = (Path(self.root) / "hbmfs" / "_version.py").read_text()
        path.write_text(text.replace('"devel"', f'"{self.metadata.version}"'))
        return str(path)
