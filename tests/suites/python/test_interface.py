"""libhbmfs is written by hand in four places: libhbmfs.h, the layer in C, the exports of Go, and _native.py. They must say the same."""

import ctypes
import re
import types
from pathlib import Path
from typing import NamedTuple

import pytest
from hbmfs._lib import _native

SOURCE = next(path for path in Path(__file__).resolve().parents if (path / "go.mod").exists()) / "cmd" / "libhbmfs"

NOT_IN_PYTHON = {"hbmfs_abi", "hbmfs_version", "hbmfs_code_name", "hbmfs_read", "hbmfs_gather", "hbmfs_kv_outcome_name"}
"""hbmfs_abi is called by itself; the others are for C."""

SCALARS = {
    "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64, "hbmfs_handle": ctypes.c_uint64,
    "uint8_t": ctypes.c_uint8, "char": ctypes.c_char,
}  # fmt: skip


class Sources(NamedTuple):
    header: str
    layer: str
    exports: str
    native: str


class Function(NamedTuple):
    returns: str
    types: list
    names: list
    body: str = ""


def read():
    return Sources(
        (SOURCE / "libhbmfs.h").read_text(),
        "\n".join(path.read_text() for path in sorted(SOURCE.glob("layer*.c"))),
        "\n".join(path.read_text() for path in sorted(SOURCE.glob("export*.go"))),
        Path(_native.__file__).read_text(),
    )


# C


def plain(text):
    """C without comments."""
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


def spelled(text):
    """A type as one spelling: words and asterisks with spaces between."""
    return " ".join(re.findall(r"\w+|\*", text))


def variable(c_type):
    """A type of memory that may be written: what const says concerns the caller of the header only."""
    return " ".join(word for word in c_type.split() if word != "const")


def declared(text):
    """The type and the name of a declaration such as `const char *path`."""
    words = spelled(text).split()
    return " ".join(words[:-1]), words[-1]


def c_functions(text, end):
    """The functions of C that are declared (end is ;) or defined (end is {)."""
    found = {}
    for match in re.finditer(r"^(?:static )?((?:const )?\w+ \**)(\w+)\(([^;{}]*?)\)\s*" + end, plain(text), re.MULTILINE):
        returns, name, arguments = match.groups()
        pairs = [] if arguments == "void" else [declared(argument) for argument in arguments.split(",")]
        rest = plain(text)[match.end() :]
        body = rest[: re.search(r"\n}|}\n", rest).start()] if end == "{" else ""
        found[name] = Function(spelled(returns), [kind for kind, _ in pairs], [word for _, word in pairs], body)
    return found


def structs(header):
    """The fields of each struct: (name, type, length of an array or 0)."""
    found = {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", plain(header), re.DOTALL):
        fields = []
        for line in filter(str.strip, body.split(";")):
            base = re.match(r"\s*((?:const )?\w+)", line)
            for declarator in line[base.end() :].split(","):
                stars, word, length = re.match(r"\s*([*\s]*)(\w+)(?:\[(\d+)\])?\s*$", declarator).groups()
                fields.append((word, variable(spelled(base[1] + stars)), int(length or 0)))
        found[name] = fields
    return found


def defined(header):
    """The numbers of #define."""
    found = re.findall(r"^#define HBMFS_(\w+) +(.+?) *$", plain(header), re.MULTILINE)
    return {name: eval(value.replace("UINT64_MAX", "2**64-1").rstrip("u")) for name, value in found}


def enum(header, name):
    """The members of an enum, and their numbers."""
    body = re.search(r"typedef enum \{([^}]*)\} " + name, plain(header))[1]
    return {member: int(number) for member, number in re.findall(r"\bHBMFS_(\w+) = (\d+)", body)}


def widening(member):
    """U16_TO_I64 as NumPy names the two types."""
    return tuple(word.replace("U", "uint").replace("I", "int") for word in member.split("_TO_"))


# Go


def go_exports(text):
    found = {}
    for comment, name, arguments, returns in re.findall(r"^//export (\w+)\nfunc (\w+)\((.*?)\) (\S+) \{", text, re.DOTALL | re.MULTILINE):
        assert comment == name, f"//export {comment} is above {name}"
        kinds, names = [], []
        for argument in reversed([part.split() for part in arguments.split(",") if part.strip()]):
            kinds.insert(0, of_go(argument[1]) if len(argument) > 1 else kinds[0])  # `a, b C.int64_t` are two of a type
            names.insert(0, argument[0])
        found[name] = Function(of_go(returns), kinds, names)
    return found


def of_go(text):
    """A type of Go's as C has it."""
    return "void *" if text == "unsafe.Pointer" else spelled(text.replace("C.", "").lstrip("*") + "*" * text.count("*"))


def calls(body):
    """The calls of Go's functions in a body: name, arguments."""
    for match in re.finditer(r"hbmfs_go_\w+(?=\()", body):
        depth, arguments = 0, [""]
        for letter in body[match.end() :]:
            depth += {"(": 1, ")": -1}.get(letter, 0)
            if depth == 0:
                break
            if letter == "," and depth == 1:
                arguments.append("")
            elif not (letter == "(" and depth == 1 and arguments == [""]):
                arguments[-1] += letter
        yield match[0], [argument.strip() for argument in arguments if argument.strip()]


def type_of(argument, function, functions):
    """The type of what the layer passes on."""
    known = dict(zip(function.names, function.types, strict=True)) | {name: spelled(kind) for kind, name in re.findall(r"\b(\w+ \**)(\w+) = ", function.body)}
    if cast := re.fullmatch(r"\((\w+ \**)\)(\w+)", argument):
        assert variable(known[cast[2]]) == spelled(cast[1]), f"{argument} makes another type of {known[cast[2]]}"
        return spelled(cast[1])
    if choice := re.fullmatch(r"\w+ \? (\w+) : 0", argument):
        argument = choice[1]
    if call := re.match(r"(\w+)\(", argument):
        return functions[call[1]].returns
    return f"{known[argument[1:]]} *" if argument.startswith("&") else known[argument]


# Python


def loaded(text):
    """_native.py as a module of its own."""
    module = types.ModuleType("hbmfs._lib._native_read")
    module.__dict__.update(__package__="hbmfs._lib", __file__=_native.__file__)
    exec(compile(text, _native.__file__, "exec"), module.__dict__)
    return module


def same(python, c_type, pairs):
    """Whether a type of ctypes is one of C's. Pointers to structs are noted as pairs."""
    if not c_type.endswith("*"):
        if issubclass(python, ctypes.Structure):
            pairs[c_type] = python
            return c_type not in SCALARS
        return python is SCALARS.get(c_type)
    target = c_type.removesuffix(" *")
    if python is ctypes.c_void_p:
        return True  # an array of NumPy's
    if python is ctypes.c_char_p:
        return target == "char"
    return issubclass(python, ctypes._Pointer) and same(python._type_, target, pairs)


def fields_of(structure):
    return [field for base in reversed(structure.__mro__) for field in base.__dict__.get("_fields_", ())]


def flat(name, known, at=0):
    """The fields of a struct with those of structs in it: name, offset, bytes. And its size and alignment."""
    found, align, begin = [], 1, at
    for word, kind, length in known[name]:
        if kind in known:
            inside, size, own = flat(kind, known, -(-at // 8) * 8)
        else:
            own = 8 if kind.endswith("*") else ctypes.sizeof(SCALARS[kind])
            size, inside = own * max(length, 1), [(word, -(-at // own) * own, own * max(length, 1))]
        at, align = -(-at // own) * own + size, max(align, own)
        found += inside
    return found, -(-(at - begin) // align) * align, align


def differences(sources):
    """What one of the four says otherwise, in sentences."""
    header, layer, exports = c_functions(sources.header, ";"), c_functions(sources.layer, "{"), go_exports(sources.exports)
    known, native = structs(sources.header), loaded(sources.native)
    numbers, widen, codes = defined(sources.header), enum(sources.header, "hbmfs_widen"), enum(sources.header, "hbmfs_code")

    own = {name for name in layer if not name.startswith("hbmfs_") or name.startswith("hbmfs_fail")}  # the layer's, which no caller sees
    for name in sorted(header.keys() | layer.keys() - own):
        there, here = header.get(name), layer.get(name)
        if there is None or here is None:
            yield f"{name} is not in the {'header' if there is None else 'layer'}"
        elif there[:3] != here[:3]:
            yield f"{name}: the header has {there[:3]}, the layer {here[:3]}"

    called = set()
    for name, function in layer.items():
        for go, arguments in calls(function.body):
            called.add(go)
            if go not in exports:
                yield f"{name} calls {go}, which Go does not export"
                continue
            try:
                passed = [variable(type_of(argument, function, layer)) for argument in arguments]
            except (AssertionError, KeyError) as err:
                yield f"{name}: {go}({', '.join(arguments)}): {err}"
                continue
            if passed != exports[go].types or variable(function.returns) != exports[go].returns:
                yield f"{name} calls {go} with {passed} for {function.returns}, Go has {exports[go].types} for {exports[go].returns}"
    yield from (f"{go} is not called by the layer" for go in sorted(exports.keys() - called))

    pairs = {"hbmfs_failure": native.Failure}
    python = {f"hbmfs_{name}": arguments for name, arguments in native._FUNCTIONS.items()}
    yield from (f"{name} is not in the header and in Python" for name in sorted((header.keys() ^ python.keys()) - (NOT_IN_PYTHON & header.keys())))
    for name in sorted(python.keys() & header.keys()):
        kinds = list(map(variable, header[name].types))
        if header[name].returns != "int32_t" or kinds[-1] != "hbmfs_failure *" or len(kinds) - 1 != len(python[name]):
            yield f"{name}: the header has {header[name][:3]}, Python {python[name]}"
        else:
            wrong = [(ours, theirs) for ours, theirs in zip(python[name], kinds, strict=False) if not same(ours, theirs, pairs)]
            yield from (f"{name}: Python has {ours}, the header {theirs}" for ours, theirs in wrong)

    done = set()
    while todo := pairs.keys() - done:
        name = min(todo)
        done.add(name)
        ours, theirs = fields_of(pairs[name]), known.get(name, [])
        if [field[0] for field in ours] != [field[0] for field in theirs]:
            yield f"{name}: Python has the fields {[field[0] for field in ours]}, the header {[field[0] for field in theirs]}"
            continue
        for (word, kind), (_, c_type, length) in zip(ours, theirs, strict=True):
            if not (same(kind._type_, c_type, pairs) and kind._length_ == length if length else same(kind, c_type, pairs)):
                yield f"{name}.{word}: Python has {kind}, the header {c_type}[{length}]"

    for name, dtype in {"hbmfs_memory": native.MEMORY, "hbmfs_write_part": native.WRITE_PART, "hbmfs_source": native.SOURCE}.items():
        ours = [(word, dtype.fields[word][1], dtype[word].itemsize) for word in dtype.names], dtype.itemsize
        if ours != flat(name, known)[:2]:
            yield f"{name}: NumPy has {ours}, the header {flat(name, known)[:2]}"

    for what, ours, theirs in (
        *((name, getattr(native, name), numbers[name]) for name in ("ABI", "CHUNK", "NO_STREAM", "KV_CREATE", "KV_WRITE", "KV_SUMS")),
        ("hbmfs_widen", {tuple(map(str, kinds)): n for kinds, n in native.WIDEN.items()}, {widening(name): n for name, n in widen.items() if n}),
        ("hbmfs_page_cache", native.PAGE_CACHE, {name.removeprefix("PAGE_CACHE_").lower(): n for name, n in enum(sources.header, "hbmfs_page_cache").items()}),
        ("hbmfs_code", {native.OK, native.TIMEOUT, codes["INTERNAL"], *native._EXCEPTIONS}, set(codes.values())),
    ):
        if ours != theirs:
            yield f"{what}: Python has {ours}, the header {theirs}"


def test_all_four_say_the_same():
    assert list(differences(read())) == []
    assert len(c_functions(read().header, ";")) >= 62


PLANTED = [
    # a function of another name
    ("header", "int32_t hbmfs_kv_clear(", "int32_t hbmfs_kv_empty(", "hbmfs_kv_clear"),
    ("layer", "int32_t hbmfs_kv_clear(", "int32_t hbmfs_kv_empty(", "hbmfs_kv_clear"),
    ("layer", "return hbmfs_go_kv_clear(", "return hbmfs_go_kv_empty(", "hbmfs_go_kv_clear"),
    ("exports", "hbmfs_go_kv_clear", "hbmfs_go_kv_empty", "hbmfs_go_kv_clear"),
    ("native", '"kv_clear":', '"kv_empty":', "hbmfs_kv_clear"),
    # a function that is missing
    ("header", "int32_t hbmfs_memory_free(hbmfs_handle memory, hbmfs_failure *why);", "", "hbmfs_memory_free"),
    ("native", '"memory_free": [_Handle],', "", "hbmfs_memory_free"),
    # one argument more, or less
    ("header", "hbmfs_verify_begin(const char *path, int32_t threads, ", "hbmfs_verify_begin(const char *path, ", "hbmfs_verify_begin"),
    (
        "layer",
        "hbmfs_verify_begin(const char *path, int32_t threads, ",
        "hbmfs_verify_begin(const char *path, int32_t threads, int32_t more, ",
        "hbmfs_verify_begin",
    ),
    ("layer", "hbmfs_go_verify_begin((char *)path, threads, ", "hbmfs_go_verify_begin((char *)path, ", "hbmfs_go_verify_begin"),
    ("exports", "hbmfs_go_verify_begin(path *C.char, threads C.int32_t, ", "hbmfs_go_verify_begin(path *C.char, ", "hbmfs_go_verify_begin"),
    ("native", '"verify_begin": [ctypes.c_char_p, _i32, ', '"verify_begin": [ctypes.c_char_p, ', "hbmfs_verify_begin"),
    # arguments in another order, or of another name
    (
        "header",
        "hbmfs_draft_begin(const char *path, int32_t part, int32_t parts",
        "hbmfs_draft_begin(const char *path, int32_t parts, int32_t part",
        "hbmfs_draft_begin",
    ),
    ("native", '"wait": [_Handle, _i64, _pointer(Result)]', '"wait": [_i64, _Handle, _pointer(Result)]', "hbmfs_wait"),
    # an argument of another type
    (
        "header",
        "hbmfs_write_progress(hbmfs_handle write, int64_t *written",
        "hbmfs_write_progress(hbmfs_handle write, uint64_t *written",
        "hbmfs_write_progress",
    ),
    ("layer", "hbmfs_kv_wait(hbmfs_handle request, int64_t timeout_ns", "hbmfs_kv_wait(hbmfs_handle request, int32_t timeout_ns", "hbmfs_kv_wait"),
    ("layer", "(int64_t *)offsets, count, length, widen", "(uint64_t *)offsets, count, length, widen", "hbmfs_go_gather_begin"),
    ("layer", "int64_t took = 0;", "int32_t took = 0;", "hbmfs_go_snapshot_wait"),
    ("exports", "func hbmfs_go_wait(h C.hbmfs_handle, timeout C.int64_t", "func hbmfs_go_wait(h C.hbmfs_handle, timeout C.int32_t", "hbmfs_go_wait"),
    ("exports", "count, length C.int64_t, widen C.int32_t", "count, length C.int32_t, widen C.int32_t", "hbmfs_go_gather_begin"),
    ("native", '"write_progress": [_Handle, _pointer(_i64)]', '"write_progress": [_Handle, _pointer(_i32)]', "hbmfs_write_progress"),
    ("native", '"reader_get_info": [_Handle, _pointer(ReaderInfo)]', '"reader_get_info": [_Handle, _pointer(ReaderStats)]', "hbmfs_reader_info"),
    # another result
    ("header", "int32_t hbmfs_wait(", "int64_t hbmfs_wait(", "hbmfs_wait"),
    ("layer", "int32_t hbmfs_wait(", "int64_t hbmfs_wait(", "hbmfs_wait"),
    ("exports", "func hbmfs_go_version() *C.char", "func hbmfs_go_version() C.int32_t", "hbmfs_go_version"),
    # a struct
    ("header", "int32_t reuse; ", "int32_t again; ", "hbmfs_reader_options"),
    ("header", "char uuid[64];", "char uuid[65];", "hbmfs_reader_info.uuid"),
    ("header", "int32_t on_device;", "int64_t on_device;", "hbmfs_memory"),
    ("header", "int64_t every; ", "int32_t every; ", "hbmfs_source"),
    ("native", '("arena_bytes", _i64),\n        ("rate", _i64)', '("arena_bytes", _i64),\n        ("rate", _u64)', "hbmfs_writer_options.rate"),
    ("native", '("stored", "present", ', '("present", "stored", ', "hbmfs_kv_stats"),
    ("native", '("sums", _i64)]', '("sums", _i64), ("more", _i64)]', "hbmfs_draft_file"),
    # a number
    ("header", "HBMFS_FORMAT = 27", "HBMFS_FORMAT = 28", "hbmfs_code"),
    ("header", "HBMFS_U8_TO_I32 = 3", "HBMFS_U8_TO_I32 = 30", "hbmfs_widen"),
    ("native", "ABI = 2", "ABI = 3", "ABI"),
]


@pytest.mark.parametrize(("where", "old", "new", "names"), PLANTED)
def test_a_difference_is_found(where, old, new, names):
    sources = read()
    text = getattr(sources, where)
    assert old in text
    found = list(differences(sources._replace(**{where: text.replace(old, new)})))
    assert any(names in sentence for sentence in found), found
