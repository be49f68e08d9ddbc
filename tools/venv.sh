#!/bin/sh
# venv.sh DIR LIST: makes DIR, the Python environment of the packages that LIST pins, or returns at once when it is there.
set -eu
dir=$1 list=$2
here=$(dirname "$0")
stamp=$(cksum <"$list")
[ "$(cat "$dir/stamp" 2>/dev/null)" != "$stamp" ] || exit 0
"$here/need.sh" python
rm -rf "$dir"
python3 -m venv "$dir"
"$here/retry.sh" "$dir/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$list"
echo "$stamp" >"$dir/stamp"
