"""Arguments of public calls, checked by the types that they are declared with. An error names the given and the expected type.

Calls that a trainer makes for every batch are not wrapped. They check numbers and arrays themselves.
"""

from __future__ import annotations

import builtins
import collections.abc as abc
import functools
import inspect
import numbers
import operator
import os
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from ..errors import AccessError, ArgumentError, Error, ExistsError, InvalidError, NotFoundError

if TYPE_CHECKING:
    import torch

    Device = str | int | torch.device | None
    """"cpu", "cuda", "cuda:1", an index, or a torch.device."""
else:
    Device = Any  # _device.parse reads it, and reports mistakes

Path = str | os.PathLike[str]

F = TypeVar("F", bound=Callable[..., Any])


class Kind(NamedTuple):
    """The values that a parameter takes."""

    says: str
    takes: Callable[[Any], bool]


_PROTOCOLS = dict.fromkeys(("Dataset", "Whole"), "an open dataset, as hbmfs.open(path) gives")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 2
ANYTHING = Kind("anything", lambda value: True)


def checked(function: F) -> F:
    """Has calls of a public function checked. Their OSErrors that name a file become hbmfs's."""
    kinds: dict[str, Kind] = {}

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if not kinds:
            kinds.update(kinds_of(function))
        for name, value in (*zip(kinds, arguments, strict=False), *options.items()):
            kind = kinds.get(name, ANYTHING)
            if not kind.takes(value):
                raise ArgumentError(f"{_called(function)}({name}={shown(value)}): {name} must be {kind.says}")
        try:
            return function(*arguments, **options)
        except (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError) as err:
            if isinstance(err, Error) or err.filename is None:
                raise
            raise _told(err) from err

    return cast(F, call)


def shown(value: Any) -> str:
    """A value in an error: as Python writes it, a long one without its middle."""
    text = _SHORT.repr(value)
    return text if "\n" not in text else f"<a {type(value).__name__}>"


def seconds(timeout: Any) -> float:
    """A time to wait, in a call that is not wrapped."""
    if not _number(timeout) or timeout != timeout:
        raise ArgumentError(f"timeout is {shown(timeout)}: give seconds, or None to wait for ever")
    return float(timeout)


def kinds_of(function: Callable[..., Any]) -> dict[str, Kind]:
    """The values that each parameter of a function takes, those by position first."""
    names = _Names(getattr(function, "__globals__", {}))
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind not in several]
    return {p.name: ANYTHING if p.annotation is p.empty else kind_of(p.annotation, names) for p in parameters}


class _Names(dict[str, Any]):
    """The names of a module, and those that it imports for type checkers only."""

    def __missing__(self, name: str) -> Any:
        for module in (builtins, sys.modules["hbmfs"]):
            if hasattr(module, name):
                return getattr(module, name)
        return sys.modules.get(name) or _Later()


class _Later:
    """A package that is not imported, and all of its types: anything may be of them."""

    def __getattr__(self, name: str) -> _Later:
        return self

    def __or__(self, other: Any) -> Any:
        return Any

    __ror__ = __or__


def kind_of(hint: Any, names: Mapping[str, Any]) -> Kind:
    """The values that a type hint takes. A hint that needs a package that is not imported takes anything."""
    if isinstance(hint, (str, typing.ForwardRef)):
        try:
            hint = eval(hint if isinstance(hint, str) else hint.__forward_arg__, {}, names)  # of our own source
        except (AttributeError, NameError, TypeError):
            return ANYTHING
    if isinstance(hint, TypeVar):
        hint = hint.__bound__ or Any
    if hint is Any or isinstance(hint, _Later):
        return ANYTHING
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, of = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is os.PathLike:
        return _PATH
    if origin in (typing.Union, types.UnionType):
        kinds = [kind_of(one, names) for one in of]
        if ANYTHING in kinds:
            return ANYTHING
        if _PATH in kinds:
            kinds.remove(_SIMPLE[str])
        return Kind(_either([kind.says for kind in kinds]), lambda value: any(kind.takes(value) for kind in kinds))
    if origin is typing.Literal:
        return Kind(_either([repr(one) for one in of]), lambda value: any(value is one or (type(value) is type(one) and value == one) for one in of))
    if origin in (abc.Callable, Callable):
        return Kind("a function", callable)
    if origin is tuple:
        parts = [kind_of(one, names) for one in of if one is not Ellipsis]
        if len(parts) < len(of) or not parts:
            return _listed(parts[0] if parts else ANYTHING, (tuple, list))
        return Kind(
            f"({', '.join(part.says for part in parts)})",
            lambda value: isinstance(value, (tuple, list)) and len(value) == len(parts) and all(map(lambda part, one: part.takes(one), parts, value)),
        )
    if origin in (dict, abc.Mapping):
        key, each = (kind_of(one, names) for one in of)
        return Kind(
            f"a mapping of {key.says} to {each.says}",
            lambda value: isinstance(value, abc.Mapping) and all(key.takes(k) and each.takes(v) for k, v in value.items()),
        )
    if origin in (abc.Sequence, list):
        return _listed(kind_of(of[0], names), (abc.Sequence,))
    if origin is abc.Iterable:
        each = kind_of(of[0], names)
        return Kind(  # an iterator is not
            f"several of {each.says}",
            lambda value: isinstance(value, abc.Iterable) and not isinstance(value, bytes) and (isinstance(value, abc.Iterator) or all(map(each.takes, value))),
        )
    if getattr(origin, "_is_protocol", False):
        methods = [name for name, there in vars(origin).items() if inspect.isfunction(there) and not name.startswith("_")]
        return Kind(
            _PROTOCOLS.get(origin.__name__, f"a {origin.__name__}"),
            lambda value: not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in methods),
        )
    if isinstance(origin, type):
        named = f"hbmfs.{origin.__name__}" if origin.__module__.startswith("hbmfs.") else origin.__name__
        return Kind(f"an {named}" if named[0] in "aeh" else f"a {named}", lambda value: isinstance(value, origin))
    return ANYTHING


def _listed(each: Kind, types: tuple[type, ...]) -> Kind:
    def takes(value: Any) -> bool:
        return isinstance(value, types) and not isinstance(value, (str, bytes)) and all(map(each.takes, cast(abc.Iterable[Any], value)))

    return Kind(f"a list of {each.says}" if each is not ANYTHING else "a list", takes)


def _whole(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _yes_or_no(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool") or (isinstance(value, int) and value in (0, 1))


_PATH = Kind("a path (a str or an os.PathLike)", lambda value: isinstance(value, (str, os.PathLike)))
_SIMPLE: dict[Any, Kind] = {
    str: Kind("a str", lambda value: isinstance(value, str)),
    bytes: Kind("bytes", lambda value: isinstance(value, bytes)),
    int: Kind("a whole number", _whole),
    float: Kind("a number", _number),
    bool: Kind("True or False", _yes_or_no),
    None: Kind("None", lambda value: value is None),
    type(None): Kind("None", lambda value: value is None),
    object: ANYTHING,
}


def _either(says: list[str]) -> str:
    return " or ".join(dict.fromkeys(one for one in says if (one, "a number") != ("a whole number", says[0])))


def _called(function: Callable[..., Any]) -> str:
    own = function.__module__.partition("hbmfs.integrations")[2]
    return f"hbmfs{own}.{function.__qualname__}".removesuffix(".__init__")


def _told(err: OSError) -> Error:
    """An error of the operating system about a file, as ours."""
    name = os.fsdecode(err.filename) if isinstance(err.filename, (str, bytes, os.PathLike)) else str(err.filename)
    if isinstance(err, FileNotFoundError):
        return NotFoundError(f"{name} does not exist")
    if isinstance(err, PermissionError):
        return AccessError(f"{name} may not be used so by this user: {err.strerror}")
    if isinstance(err, IsADirectoryError):
        return InvalidError(f"{name} is a directory: give a file")
    if isinstance(err, NotADirectoryError) or not os.path.isdir(name):
        return InvalidError(f"{name} is no directory, or lies below a file: give a directory")
    return ExistsError(f"{name} is there already: give another name")
