"""Public names whose packages are not installed: they exist, and their use names the package to install."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

from .errors import UnavailableError


class _Absent(UnavailableError, AttributeError):
    """An error that hasattr() takes for an answer, too."""


class _Class(type):
    """A class that cannot be used."""

    _why: str

    def __call__(cls, *_: Any, **__: Any) -> NoReturn:
        raise UnavailableError(cls._why)

    def __getattr__(cls, name: str) -> NoReturn:
        raise _Absent(cls._why)


class _Module(ModuleType):
    """A module that cannot be used."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _Absent(self.__doc__)


def named(name: str, package: str, *, module: bool) -> Any:
    """Stands for a class, or a module, that needs a package."""
    why = f"hbmfs.{name} needs {package}, which is not installed: pip install {package}"
    return _Module(f"hbmfs.{name}", why) if module else _Class(name, (), {"_why": why, "__doc__": why, "__module__": "hbmfs"})
