#!/bin/sh
# stage.sh BIN PREFIX DIR: lays BIN/hbmfs and all that belongs to it out in DIR, as `make install` does. HOST is the folder of a
# command that this machine can run, which writes the man pages and completions; BIN where there is none.
set -eu
bin=$1 prefix=$2 dir=$3
rm -rf "$dir"
MAKEFLAGS= "$MAKE" --silent install BIN="${HOST:-$bin}" DESTDIR="$dir" PREFIX="$prefix" MOUNTDIR=/usr/sbin
install -m 755 "$bin/hbmfs" "$dir$prefix/bin/hbmfs"
install -D -m 644 -t "$dir$prefix/share/doc/hbmfs" README.md CHANGELOG.md LICENSE
find docs -name '*.md' -o -name '*.svg' | while read -r page; do install -D -m 644 "$page" "$dir$prefix/share/doc/hbmfs/$page"; done
install -D -m 644 -t "$dir$prefix/share/doc/hbmfs/examples" deploy/systemd/*.conf deploy/systemd/*.example deploy/systemd/*.mount
tools/dist/timeless.sh "$dir"
