#!/bin/sh
# install.sh deb|rpm PACKAGE WORK SOURCE: installs a package, uses it, and removes it, on this machine but for nobody else: run
# it in a mount namespace of its own (unshare --mount). What it writes below /usr, /etc and /var goes into an overlay on WORK,
# and what is left there in the end is what the package left behind. Its last line is "passed".
set -eu
kind=$1 package=$2 work=$3 source=$4

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

mount -t tmpfs -o mode=755 tmpfs "$work"
for dir in usr etc var; do
    mkdir -p "$work/lower/$dir" "$work/$dir/up" "$work/$dir/work"
    mount --bind "/$dir" "$work/lower/$dir"
    mount -t overlay -o "lowerdir=/$dir,upperdir=$work/$dir/up,workdir=$work/$dir/work" overlay "/$dir" || {
        echo "no overlay" # which the caller takes for a machine that cannot
        exit 0
    }
done
# systemd is out of reach: a script of the package would stop the mounts that this machine has.
[ ! -d /run/systemd ] || mount -t tmpfs tmpfs /run/systemd
# Nor is there an hbmfs of this machine here.
if dpkg --status hbmfs >/dev/null 2>&1; then
    dpkg --no-triggers --force-unsafe-io --purge hbmfs
fi
while found=$(command -v hbmfs); do
    rm "$found"
    hash -r
done

rpmdb=/var/lib/hbmfs-rpm # not the machine's own, where it has one
case $kind in
deb) dpkg --no-triggers --force-unsafe-io --install "$package" ;; # the index of man would take longer than all the rest
# Without dependencies: this machine's C library came from elsewhere.
rpm) rpm --force-debian --dbpath "$rpmdb" --nodeps --install "$package" ;;
esac

# The program, its pages, its completions, its unit.
hbmfs --version
[ "$(readlink -f /sbin/mount.fuse.hbmfs)" = /usr/bin/hbmfs ] || fail "mount(8) does not find it"
for file in /usr/share/man/man1/hbmfs-mount.1 /usr/share/bash-completion/completions/hbmfs /usr/share/doc/hbmfs/LICENSE \
    /usr/share/doc/hbmfs/docs/guide/mounting.md /usr/share/doc/hbmfs/docs/reference/parts.svg /usr/share/doc/hbmfs/examples/example.conf; do
    [ -s "$file" ] || fail "$file is not there"
done
[ -d /etc/hbmfs ] || fail "/etc/hbmfs is not there"
cp /usr/share/doc/hbmfs/examples/example.conf /etc/hbmfs/pile.conf
if command -v systemd-analyze >/dev/null; then
    systemd-analyze verify --man=no hbmfs@pile.service
fi

# By mount(8) and a line of /etc/fstab.
point=$work/point
mkdir "$point"
echo "$source $point fuse.hbmfs allow_other,nofail,log_file=/var/log/hbmfs.log 0 0" >>/etc/fstab
mount "$point"
cmp "$source/data.bin" "$point/data.bin"
daemon=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$point/.hbmfs/status" | head -1)
[ -n "$daemon" ] || fail "the status has no pid"
umount "$point"
waited=0
while kill -0 "$daemon" 2>/dev/null; do
    [ "$((waited += 1))" -lt 300 ] || fail "the daemon $daemon is still there 30 s after its mount"
    sleep 0.1
done

# rpm knows no purge: it leaves what it did not bring.
case $kind in
deb)
    dpkg --no-triggers --force-unsafe-io --remove hbmfs
    [ -e /etc/hbmfs/pile.conf ] || fail "removing took the configuration"
    dpkg --no-triggers --force-unsafe-io --purge hbmfs
    ;;
rpm)
    rpm --force-debian --dbpath "$rpmdb" --verify --nodeps hbmfs
    rpm --force-debian --dbpath "$rpmdb" --erase hbmfs
    [ -e /etc/hbmfs/pile.conf ] || fail "removing took the configuration"
    rm -r /etc/hbmfs /var/log/hbmfs.log "$rpmdb"
    ;;
esac

# Everything that this machine did not have before; the books of package managers and of man aside. (A character device in
# an overlay stands for what was removed.)
for dir in usr etc var; do
    (cd "$work/$dir/up" && find . -mindepth 1 ! -type c) | while read -r path; do
        path=$dir/${path#./}
        [ "$path" = var/log/hbmfs.log ] || [ ! -e "$work/lower/$path" ] || continue
        case $path in
        var/log/hbmfs.log) echo "/$path" ;;
        etc/fstab | var/lib/dpkg | var/lib/dpkg/* | var/log/*.log | var/cache | var/cache/*) ;;
        # Directories of zsh and fish: distributions with rpm have a package that owns them.
        usr/share/zsh* | usr/share/fish*) [ "$kind/$(stat -c %F "/$path")" = rpm/directory ] || echo "/$path" ;;
        *) echo "/$path" ;;
        esac
    done
done >"$work/left"
[ ! -s "$work/left" ] || fail "left behind: $(tr '\n' ' ' <"$work/left")"
echo passed
