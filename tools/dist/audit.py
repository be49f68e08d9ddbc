"""audit.py WHEEL PLATFORM: has auditwheel confirm that a wheel fits a platform, such as manylinux_2_17_x86_64.

Go's own linker leaves an empty section .gnu.version_r in the command, of a type for which auditwheel has no reader: none of the
command's symbols has a version.
"""

import contextlib
import io
import sys

from auditwheel.main import main
from elftools.elf.sections import Section

wheel, platform = sys.argv[1:]
Section.iter_versions = lambda _self: iter(())
said = io.StringIO()
sys.argv = ["auditwheel", "show", wheel]
with contextlib.redirect_stdout(said):
    failed = main()
words = " ".join(said.getvalue().split())
if failed or f'consistent with the following platform tag: "{platform}"' not in words:
    raise SystemExit(f"auditwheel does not take {wheel} for {platform}: {words}")
