#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The first process of the emulated machine: shared root directory, a layer to write on, and on.
b=/bin/busybox

give_up() {
    echo "machine: $*"
    $b reboot -f
}

$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
# Else every namespace has links that nobody made, once the module of a kind of tunnel is there.
echo 1 >/proc/sys/net/core/fb_tunnels_only_for_init_net
for module in $($b cat /modules/order); do
    $b insmod "$module" || give_up "cannot load $module"
done

share=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o $share,ro,cache=loose root /lower || give_up "no root directory"
$b mount -t tmpfs -o mode=755 layer /layer
$b mkdir /layer/upper /layer/work
# Inode numbers of 9p leave no room for those of the layers.
$b mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work,xino=off root /new ||
    give_up "no layer to write on"

for dir in proc sys dev; do
    $b mount --move /$dir /new/$dir
done
$b mkdir -p /new/dev/pts /new/dev/shm /new/dev/net
$b mount -t devpts -o mode=620,ptmxmode=666 pts /new/dev/pts
$b mount -t tmpfs shm /new/dev/shm
# There is no udev; opening it loads its module.
$b mknod /new/dev/net/tun c 10 200
$b ln -s /proc/self/fd /new/dev/fd
for stream in 0:stdin 1:stdout 2:stderr; do
    $b ln -s "/proc/self/fd/${stream%:*}" "/new/dev/${stream#*:}"
done
$b mount -t tmpfs -o mode=755 run /new/run
$b mkdir -p /new/run/machine /new/lib/modules
$b mount -t 9p -o $share,cache=none session /new/run/machine || give_up "no session"
$b mount --bind "/lower$($b cat /all-modules)" /new/lib/modules || give_up "no modules"
$b mount -t cgroup2 cgroup /new/sys/fs/cgroup
$b mount -t bpf bpf /new/sys/fs/bpf
$b mount -t tracefs trace /new/sys/kernel/tracing
$b cp /bin/busybox /new/run/busybox
# The kernel starts modprobe in the root directory that this process has.
exec $b chroot /new /run/busybox sh /run/machine/start
