"""Where the library is loaded from: never from where somebody else could have put one."""

import os
import subprocess
import sys

import hbmfs
import pytest
from hbmfs._lib import _native, reader


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package without a library of its own, with one where a clone would have it."""
    monkeypatch.delenv("HBMFS_LIBRARY", raising=False)
    for name in ("clone/python/hbmfs", "clone/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "clone/bin/libhbmfs.so").write_bytes(b"")
    for name in ("clone", "clone/bin", "clone/bin/libhbmfs.so"):
        (tmp_path / name).chmod(0o775)  # as with a umask of 002
    return tmp_path / "clone/python/hbmfs"


def test_the_clone_s_library_is_found(package):
    assert _native.find(str(package)) == str(package.parent.parent / "bin/libhbmfs.so")
    own = package / "libhbmfs.so"
    own.write_bytes(b"")
    assert _native.find(str(package)) == str(own)


@pytest.mark.parametrize("name", [".", "bin", "bin/libhbmfs.so"])
def test_a_library_that_others_may_change_is_refused(package, name):
    place = package.parent.parent / name
    place.chmod(0o777)
    with pytest.raises(hbmfs.LibraryError, match="HBMFS_LIBRARY"):
        _native.find(str(package))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make files of others")
@pytest.mark.parametrize("name", [".", "bin", "bin/libhbmfs.so"])
def test_a_library_of_another_user_is_refused(package, name):
    os.chown(package.parent.parent / name, 4711, -1)
    with pytest.raises(hbmfs.LibraryError, match="HBMFS_LIBRARY"):
        _native.find(str(package))


def test_there_is_none(package):
    (package.parent.parent / "bin/libhbmfs.so").unlink()
    with pytest.raises(hbmfs.LibraryError, match="make lib"):
        _native.find(str(package))


def test_the_command_is_that_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda _scheme: str(tmp_path))
    assert reader._installed() is None  # so that the library looks in PATH
    (tmp_path / "hbmfs").touch(mode=0o755)
    assert reader._installed() == str(tmp_path / "hbmfs")


def test_descriptors_of_the_runtime_come_with_the_library():
    code = """
import os
from hbmfs._lib import _native
def kept(): return sorted(link for fd in os.listdir("/proc/self/fd") if "anon_inode" in (link := os.path.realpath(f"/proc/self/fd/{fd}")))
assert not kept(), kept()
_native.library()._dll.hbmfs_version()  # its runtime starts beside the loading, and a call waits for it
assert len(kept()) == 2, kept()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
