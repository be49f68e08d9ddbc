#!/bin/sh
# Makes the files of this directory, with zstd and pzstd 1.5.4. All but the empty ones decode to what `seq 300` writes.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
seq 300 >"$work/data"
: >"$work/none"
zstd -q "$work/data" -o named.zst
zstd -q --no-check "$work/data" -o unsummed.zst
zstd -q <"$work/data" >piped.zst
zstd -q --long=27 <"$work/data" >window-128M.zst
zstd -q --ultra --long=31 <"$work/data" >window-2G.zst
pzstd -q -k "$work/data" -o pzstd.zst
zstd -q "$work/none" -o empty.zst
zstd -q <"$work/none" >empty-piped.zst
(cd "$work" && seq 5000 | split -l 20 - part. && zstd -q --train part.* -o dictionary --maxdict=1024)
zstd -q -D "$work/dictionary" "$work/data" -o dictionary.zst
zstd -q -D "$work/dictionary" --no-dictID "$work/data" -o dictionary-unnamed.zst
