"""What goes wrong when something is closed: an exception for who closes it, and else a warning. Never a bare traceback."""

import gc
import os
import subprocess
import sys
import threading
import warnings

import hbmfs
import numpy as np
import pytest
from hbmfs._lib._native import Failure
from hbmfs.data._forked import HostFile
from waiting import until

INTERNAL = 23


@pytest.fixture(autouse=True)
def tracebacks(monkeypatch):
    """What Python would print of exceptions that nobody hears: there must be none."""
    printed = []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    yield
    assert not printed, [str(args.exc_value) for args in printed]


class Failing:
    """A function of the library that does its work, and then says that it failed."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *arguments):
        self.calls += 1
        code = self.function(*arguments)
        if code:  # it was closed before
            return code
        failure = arguments[-1]
        assert isinstance(failure, Failure)
        failure.text = b"something was not given back"
        return INTERNAL


@pytest.fixture
def failing(monkeypatch):
    """Makes a function of the library fail."""

    def fail(name):
        functions = hbmfs._lib._native.library()._functions
        monkeypatch.setitem(functions, name, Failing(functions[name]))
        return functions[name]

    return fail


def closers():
    return [thread for thread in threading.enumerate() if thread.name == "hbmfs-close"]


def test_a_reader_that_is_closed_behind_weights(source, failing):
    failing("reader_close")
    path = next((source / "safetensors").glob("*.safetensors"))
    with pytest.warns(hbmfs.CloseWarning, match=f"{path}|weights.*could not be closed: .*not given back"):
        assert hbmfs.load_safetensors(path, "cpu")
        for thread in closers():
            thread.join(60)
    assert not closers()


def test_an_exception_of_loading_is_not_lost_in_one_of_closing(tmp_path, failing):
    called = failing("reader_close")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(hbmfs.NotFoundError):
            hbmfs.load_safetensors(tmp_path / "missing.safetensors", "cpu")
        until(lambda: called.calls)  # another thread may open the reader yet
        until(lambda: not {"hbmfs-open", "hbmfs-close"} & {thread.name for thread in threading.enumerate()})
    assert [warning.category for warning in said] == [hbmfs.CloseWarning]


@pytest.mark.parametrize("what", ["reader", "file"])
def test_what_is_forgotten_warns(tokens, failing, monkeypatch, what):
    with hbmfs.Reader("cpu") as keeper:
        thing = hbmfs.Reader("cpu") if what == "reader" else keeper.open_file(tokens[0])
        failing(f"{what}_close")
        with pytest.warns(hbmfs.CloseWarning, match=f"a {what} that was forgotten could not be closed: something was not given back"):
            del thing
            gc.collect()
        monkeypatch.undo()


def test_a_forgotten_request_warns(tokens):
    with hbmfs.Reader("cpu") as reader, reader.open_file(tokens[0]) as file:
        room = np.zeros(64, np.uint8)
        request = file.read_into(room.ctypes.data, 0, 64)

        class Broken:
            forked = False

            def ask(self, *_):
                raise hbmfs.InternalError("the library is broken")

        request._library = Broken()
        with pytest.warns(hbmfs.CloseWarning, match="a request could not be closed: the library is broken"):
            del request
            gc.collect()


def test_a_forgotten_file_of_a_child_warns(tokens):
    with hbmfs.open(tokens[0]) as ds:
        file = HostFile(ds._tokens)
        os.close(file._fd)
        with pytest.warns(hbmfs.CloseWarning, match="could not be closed.*Bad file descriptor"):
            del file


def test_closing_raises(tokens, failing):
    """Who closes gets the exception, and a dataset closes its reader all the same."""
    ds = hbmfs.open(tokens[0])
    failing("file_close")
    with pytest.raises(hbmfs.InternalError, match="not given back"):
        ds.close()
    assert ds._reader.closed
    ds.close()


def test_nothing_is_said_of_what_an_interrupt_left_unmade():
    """Ctrl-C may come before the first line of __init__."""
    classes = [found for name, module in sys.modules.items() if name.startswith("hbmfs") for found in vars(module).values() if isinstance(found, type)]
    ending = {found for found in classes if "__del__" in vars(found) and found.__module__.startswith("hbmfs")}
    assert {hbmfs._lib.request.Request, hbmfs._lib.device_array.Memory, HostFile} <= ending
    for found in ending:
        found.__new__(found)
    gc.collect()


def test_nothing_is_said_of_what_goes_well(tokens):
    program = """
import sys, hbmfs
ds = hbmfs.open(sys.argv[1])
ds.read(0, 4)
request = ds.begin_gather([0], 4)
reader = hbmfs.Reader("cpu")
file = reader.open_file(sys.argv[1])
"""
    out = subprocess.run([sys.executable, "-W", "always", "-c", program, str(tokens[0])], capture_output=True, text=True, timeout=120, check=False)
    assert (out.returncode, out.stderr) == (0, "")
