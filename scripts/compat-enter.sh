#!/bin/bash
# usage: unshare --mount --pid --uts --fork --kill-child --propagation=private compat-enter.sh TREE SCRATCH DIR... -- COMMAND...
# Becomes COMMAND inside of the Debian tree TREE, in the current directory. Each DIRECTORY is there under its own name and
# read-only, SCRATCH is its /tmp. Every mount is of this mount namespace and gone with it; by pivot_root nothing of the
# machine outside can be reached any more (with a chroot the paths in /proc would be others than those inside).
set -eu

tree=$1 scratch=$2
shift 2
[ "$$" = 1 ] || { echo "compat-enter.sh: not the first process of a pid namespace" >&2; exit 1; }
here=$PWD

mount --bind "$tree" "$tree"
mount -t proc proc "$tree/proc"
mount -t tmpfs -o mode=755,size=64M tmpfs "$tree/dev"
while read -r name mode major minor; do
    mknod -m "$mode" "$tree/dev/$name" c "$major" "$minor"
done <<'LIST'
null 666 1 3
zero 666 1 5
full 666 1 7
random 666 1 8
urandom 666 1 9
tty 666 5 0
LIST
mkdir "$tree/dev/pts" "$tree/dev/shm"
# srun --unbuffered needs pseudo-terminals.
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$tree/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$tree/dev/shm"
ln -s pts/ptmx "$tree/dev/ptmx"
ln -s /proc/self/fd "$tree/dev/fd"
for number in 0:stdin 1:stdout 2:stderr; do
    ln -s "fd/${number%%:*}" "$tree/dev/${number#*:}"
done
mount -t tmpfs -o mode=755 tmpfs "$tree/run"
mount --bind "$scratch" "$tree/tmp"
while [ "$1" != -- ]; do
    mkdir -p "$tree$1"
    mount --bind "$1" "$tree$1"
    mount -o remount,bind,ro "$tree$1"
    shift
done
shift

# torchrun asks for the address of the machine's own name.
hostname compat
printf '127.0.0.1 localhost\n127.0.1.1 compat\n' >"$tree/etc/hosts"
mkdir -p "$tree/mnt/outside"
cd "$tree"
pivot_root . mnt/outside
cd "$here"
umount --lazy /mnt/outside
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"
