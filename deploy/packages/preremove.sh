#!/bin/sh
# Before removal: dpkg says "remove" or "upgrade", rpm how many versions stay.
set -e
case "$1" in
remove | 0)
    if [ -d /run/systemd/system ]; then
        systemctl stop 'hbmfs@*.service' || true # mounts in use are detached, and end with their last file
    fi
    ;;
esac
