#!/bin/sh
# retry.sh COMMAND...: runs a command that downloads, up to four times, since a registry may fail for a moment.
set -eu

for wait in 2 10 30; do
    "$@" && exit 0
    echo "retry.sh: '$*' failed; again in $wait s" >&2
    sleep "$wait"
done
"$@" || {
    status=$?
    echo "retry.sh: '$*' failed four times: is there a network, and are its mirrors and proxies the right ones?" >&2
    exit "$status"
}
