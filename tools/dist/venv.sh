#!/bin/sh
# venv.sh: makes WORK/venv, the Python environment of what is pinned in requirements.txt, or returns at once when it is there.
set -eu
here=$(dirname "$0")
stamp=$(cksum <"$here/requirements.txt")
[ "$(cat "$WORK/venv/stamp" 2>/dev/null)" != "$stamp" ] || exit 0
"$here/../need.sh" python
rm -rf "$WORK/venv"
python3 -m venv "$WORK/venv"
"$here/../retry.sh" "$WORK/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$here/requirements.txt"
echo "$stamp" >"$WORK/venv/stamp"
