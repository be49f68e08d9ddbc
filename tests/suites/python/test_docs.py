"""docs/guide/tutorial.md, run block by block in an empty folder, and README's Python."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def shape(output):
    """Lines of output without their numbers, units and spaces, which differ between machines and versions of Python. Like lines in a row are one."""
    output = re.sub(r", [\d.]+ [kMG]?B/s, [\d.]+ M tokens/s", "", output)  # of what takes more than a second
    output = re.sub(r"/\S+/mount", "mount", output)
    lines = [re.sub(r"[\s-]+", " ", re.sub(r"[\d.,:-]*\d[\d.,:-]*( [kMG]?B)?", "#", line)).strip() for line in output.splitlines() if line.strip()]
    return [line for line, _ in itertools.groupby(lines)]


def run(language, text, folder, environment):
    """The output of a block of shell or Python."""
    if text.startswith("# train.py"):
        (folder / "train.py").write_text(text)
        return ""
    command = ["bash", "-euc", text] if language == "sh" else [sys.executable, "-c", text]
    return subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture
def environment():
    """PATH leads to the built command, and to this Python as python3."""
    programs = [os.path.dirname(os.path.abspath(os.environ["HBMFS_BINARY"])), os.path.dirname(sys.executable)]
    return {**os.environ, "PATH": os.pathsep.join([*programs, os.environ["PATH"]])}


def test_every_block_of_the_tutorial(tmp_path, environment):
    blocks = BLOCK.findall((ROOT / "docs/guide/tutorial.md").read_text())
    assert [language for language, _ in blocks].count("text") == 6
    printed = ""
    try:
        for language, text in blocks:
            if language == "text":
                assert shape(printed) == shape(text), printed
            else:
                printed = run(language, text, tmp_path, environment)
    finally:
        subprocess.run(["hbmfs", "umount", "mount"], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    assert not list(tmp_path.glob("t*"))


def test_the_loop_of_the_readme(tmp_path, mount, environment):
    """Its lines, with a mount of these tests and the CPU in the place of what they name."""
    (text,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    text = text.replace("/mnt/pile", str(mount / "nanogpt/train")).replace('"cuda:0"', '"cpu"').replace("4096", "16").replace("batch_size=8", "batch_size=2")
    model = "import itertools, torch\nclass Train:\n    def __call__(self, x, y): print(tuple(x.shape), x.dtype, (x[:, 1:] == y[:, :-1]).all().item())\ntrain_step = Train()\n"
    assert run("python", model + text, tmp_path, environment).splitlines()[0].endswith("torch.int64 True")
