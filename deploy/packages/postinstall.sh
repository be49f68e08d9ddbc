#!/bin/sh
# After installation and upgrades. Running mounts go on with the program that they were started with.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true # a unit that another package broke is not ours to report
fi
