#!/bin/sh
# tarball.sh BIN OUT: makes OUT.tar.gz, to be unpacked in /usr/local or elsewhere: the command, man pages, completions, unit, documents.
set -eu
bin=$1 out=$2
stage=$WORK/stage/$(basename "$out")
tools/dist/stage.sh "$bin" /usr/local "$stage"
# One folder, which --strip-components=1 takes away. The link for mount(8) works in /sbin only, where a tarball does not go.
tar --create --directory "$stage/usr" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu \
    --transform="s,^local,$(basename "$out")," local | gzip --no-name -9 >"$out.tar.gz"
