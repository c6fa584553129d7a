#!/bin/bash
# The first process of a virtual node. Runs in the node's own UTS, PID and mount namespaces.
# usage: node.sh NAME HOSTS_FILE SLURMD SLURM_CONF SLURMSTEPD SHARED
set -eu
hostname "$1"
mount --bind "$2" /etc/hosts
# A mount of its own for what stands for the shared file system: it can stall here and go on elsewhere.
mount --bind "$6" "$6"
# In the foreground, since a command started with & ignores SIGINT, and so would every job. It may fail: a machine
# outlives its slurmd. While bash waits for it or for the sleep, it collects orphans like the init of a machine.
"$3" -D -N "$1" -f "$4" -d "$5" || echo "slurmd of $1 ended: $?"
while :; do
    sleep infinity
done
