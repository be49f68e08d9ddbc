#!/bin/sh
# After removal. dpkg --purge takes what was configured and logged as well; rpm knows no such thing, and leaves it.
set -e
case "$1" in
purge)
    rm -rf /etc/hbmfs
    rm -f /var/log/hbmfs.log
    ;;
esac
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
