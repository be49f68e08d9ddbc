"""Checkpoints that are complete or not there: hbmfs.checkpoints._publishing, over the library."""

import errno
import gc
import os
import signal
import subprocess
import sys
import warnings
from types import SimpleNamespace

import hbmfs
import pytest
from hbmfs.checkpoints._publishing import Draft, clean, complete, remove, verify

NINE = SimpleNamespace(name="sub/nine", size=9, crc32c=(0xE3069283,))  # of b"123456789", as RFC 3720 has it


def fill(draft):
    os.mkdir(os.path.join(draft.directory, "sub"))
    with open(os.path.join(draft.directory, NINE.name), "wb") as file:
        file.write(b"123456789")


def publish(path, **options):
    with Draft.begin(path, **options) as draft:
        fill(draft)
        draft.publish([NINE])


def test_a_checkpoint_is_there_when_it_is_published(tmp_path):
    path = tmp_path / "not" / "there" / "step_10"
    draft = Draft.begin(path, part=(1, 2))
    assert draft.directory == Draft.directory_of(path) == Draft.directory_of(str(path)) == str(path.parent / ".step_10.hbmfs.tmp")
    assert os.stat(draft.directory).st_mode & 0o777 == 0o700
    fill(draft)
    assert complete(path.parent) == [] and not path.exists()
    draft.publish([NINE])
    draft.drop()  # does nothing
    publish(path.parent / "step_9")
    entries = complete(path.parent)
    assert [(e.name, e.path, e.part, e.parts, e.files, e.size) for e in entries] == [
        ("step_9", str(path.parent / "step_9"), 0, 1, 1, 9),
        ("step_10", str(path), 1, 2, 1, 9),
    ]
    seen = []
    assert verify(path, progress=lambda done, total: seen.append((done, total))) == 9 and seen[-1] == (9, 9)
    assert sorted(os.listdir(path.parent)) == ["step_10", "step_9"]
    remove(path)
    assert [e.name for e in complete(path.parent)] == ["step_9"]
    with pytest.raises(hbmfs.NotFoundError):
        remove(path)


def test_more_checkpoints_than_a_first_look_has_room_for(tmp_path):
    for step in range(70):
        Draft.begin(tmp_path / f"step_{step}").publish([])
    assert [e.name for e in complete(tmp_path)] == [f"step_{step}" for step in range(70)]


def test_what_is_there_is_never_overwritten(tmp_path):
    publish(tmp_path / "step")
    (tmp_path / "file").write_bytes(b"")
    for name, said in (("step", "complete already"), ("file", "a file is there")):
        with pytest.raises(hbmfs.ExistsError, match=said) as raised:
            Draft.begin(tmp_path / name)
        assert isinstance(raised.value, FileExistsError)
    assert verify(tmp_path / "step") == 9


def test_two_writers(tmp_path):
    first = Draft.begin(tmp_path / "step")
    with pytest.raises(hbmfs.BusyError, match=f"process {os.getpid()} on "):
        Draft.begin(tmp_path / "step")
    assert clean(tmp_path) == []
    first.drop()
    first.drop()
    with pytest.raises(hbmfs.ClosedError):
        first.publish([])
    Draft.begin(tmp_path / "step").drop()
    assert os.listdir(tmp_path) == []


def test_a_forgotten_draft_is_dropped(tmp_path):
    draft = Draft.begin(tmp_path / "step")
    fill(draft)
    del draft
    gc.collect()
    assert os.listdir(tmp_path) == []
    with pytest.raises(ZeroDivisionError), Draft.begin(tmp_path / "step"):
        1 / 0  # noqa: B018
    assert os.listdir(tmp_path) == []


def test_a_killed_writer_leaves_what_the_next_one_removes(tmp_path):
    code = "import sys; from hbmfs.checkpoints._publishing import Draft; draft = Draft.begin(sys.argv[1]); print(draft.directory, flush=True); sys.stdin.read()"
    for next_one in (lambda: Draft.begin(tmp_path / "step").drop(), lambda: clean(tmp_path)):
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "step")], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            left = child.stdout.readline().decode().strip()
            with pytest.raises(hbmfs.BusyError, match=f"process {child.pid} on "):
                Draft.begin(tmp_path / "step")
            child.send_signal(signal.SIGKILL)
        assert os.path.isdir(left) and complete(tmp_path) == []
        assert next_one() in (None, [left])
        assert os.listdir(tmp_path) == []


def test_a_forked_child_harms_no_draft(tmp_path):
    draft = Draft.begin(tmp_path / "step")
    fill(draft)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads
        child = os.fork()
    if not child:
        try:
            draft.publish([NINE])
        except hbmfs.ForkedError:
            del draft
            gc.collect()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    draft.publish([NINE])
    assert verify(tmp_path / "step") == 9


def test_files_that_are_not_those_of_the_draft(tmp_path):
    draft = Draft.begin(tmp_path / "step")
    fill(draft)
    for files, said in (
        ([], "is in the draft, and not among its files"),
        ([NINE, SimpleNamespace(name="more", size=0, crc32c=())], '"more" is not in the draft'),
        ([SimpleNamespace(name=NINE.name, size=8, crc32c=NINE.crc32c)], "has 9 bytes, and should have 8"),
        ([SimpleNamespace(name=NINE.name, size=9, crc32c=())], "0 sums cannot be those of 9 bytes"),
        ([SimpleNamespace(name="../nine", size=0, crc32c=())], "does not stay below the checkpoint"),
    ):
        with pytest.raises(hbmfs.InvalidError, match=said):
            draft.publish(files)
    draft.publish([NINE])
    assert verify(tmp_path / "step") == 9


@pytest.mark.parametrize("part", [(1, 1), (-1, 1), (0, 0), (0, 2**40)])
def test_parts_that_cannot_be(tmp_path, part):
    with pytest.raises(hbmfs.InvalidError, match="parts are counted from 0"):
        Draft.begin(tmp_path / "step", part=part)
    assert os.listdir(tmp_path) == []


def test_damage_has_its_place(tmp_path):
    path = tmp_path / "step"
    publish(path)
    (path / NINE.name).write_bytes(b"123456780")
    with pytest.raises(hbmfs.FormatError, match=r'file "sub/nine", chunk 0, 9 bytes from 0 on: crc32c is [0-9a-f]{8}, e3069283 was published'):
        verify(path)
    (path / NINE.name).unlink()
    with pytest.raises(hbmfs.FormatError, match='file "sub/nine": it is missing'):
        verify(path)
    assert complete(tmp_path) == []
    for none, said in ((tmp_path, "is no checkpoint of hbmfs"), (tmp_path / "none", "no such file")):
        with pytest.raises(hbmfs.NotFoundError, match=said):
            verify(none)


def test_an_interrupt_ends_a_verification(tmp_path):
    publish(tmp_path / "step")

    def interrupted(_done, _total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(tmp_path / "step", progress=interrupted)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make files of others")
def test_a_draft_of_another_user_stays(tmp_path):
    other = tmp_path / ".step.hbmfs.tmp"
    other.mkdir(mode=0o700)
    os.chown(other, 4711, -1)
    with pytest.raises(hbmfs.AccessError, match="belongs to another user"):
        Draft.begin(tmp_path / "step")
    assert clean(tmp_path) == [] and other.exists()


def test_where_nothing_can_be_written(tmp_path):
    with pytest.raises(hbmfs.Error) as raised:
        Draft.begin("/sys/step")
    assert isinstance(raised.value, OSError) and raised.value.errno in (errno.EPERM, errno.EACCES, errno.EROFS)
