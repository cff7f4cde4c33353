# packetdrill.sh kernel|library PACKETDRILL SCRIPT: one script in wire mode. The side under test is this network namespace, the
# wire server another one; t0-t1 carries the test, c0-c1 their control connection. The library's settings are in LIBRARY.
side=$1 packetdrill=$2 script=$3
stub() { printf '#!/bin/sh\n%s\n' "$2" >"$1"; chmod +x "$1"; }
mkdir -p /tmp/server /tmp/kernel /tmp/library /tmp/restore /tmp/run
real=$(command -v ip)
# What may not touch the kernel's side; the server calls iptables when the other side is up: the moment to have the library
# learn its MAC address before the script begins.
stub /tmp/server/iptables 'case "$*" in *-I*tcp*--dport*) timeout 1 bash -c "exec 3<>/dev/tcp/192.168.0.1/9";; esac; exit 0'
for name in ip6tables ethtool; do stub /tmp/server/$name 'exit 0'; done
for name in ip sysctl tc ifconfig nstat; do stub /tmp/library/$name 'exit 0'; done
stub /tmp/kernel/ip "case \"\$*\" in *'route add'*) exec $real \"\$@\" mtu 1500;; *) exec $real \"\$@\";; esac"

set -e
unshare -n sleep 1000 & server=$!
until [ "$(readlink /proc/$server/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
there="nsenter -t $server -n"
sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
$there sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
ip link add c0 type veth peer name c1 netns $server
ip link add t0 address 02:00:00:00:01:01 type veth peer name t1 address 02:00:00:00:01:02 netns $server
$there ip link set lo up
ip addr add 10.200.0.1/24 dev c0
$there ip addr add 10.200.0.2/24 dev c1
$there ip addr add 192.168.0.2/16 dev t1
ethtool -K t0 gro off >/dev/null
$there ethtool -K t1 gro off >/dev/null
ip link set t0 mtu 65535  # scripts inject packets of more than 1500 bytes
$there ip link set t1 mtu 65535
for name in c0 t0; do ip link set $name up; done
for name in c1 t1; do $there ip link set $name up; done
if [ $side = kernel ]; then
  ip addr add 192.168.0.1/16 dev t0
  ip neigh replace 192.168.0.2 lladdr 02:00:00:00:01:02 dev t0 nud permanent
  ip route add default via 192.168.0.2 dev t0 mtu 1500
fi

PATH=/tmp/server:$PATH $there "$packetdrill" --wire_server --wire_server_dev=t1 &
until grep -qE ':(1F91|2290) ' /proc/$server/net/tcp; do sleep 0.01; done
cd "$(dirname "$script")"
eval "settings=($LIBRARY)"
exec env PATH=/tmp/$side:$PATH "${settings[@]}" "$packetdrill" --wire_client --wire_client_dev=t0 --wire_server_ip=10.200.0.2 \
  --ip_version=ipv4 --local_ip=192.168.0.1 --gateway_ip=192.168.0.2 --netmask_ip=255.255.0.0 --remote_ip=192.0.2.1 \
  --tolerance_usecs=15000 --send_omit_free -D TFO_COOKIE=3021b9d889017eeb -D TFO_COOKIE_ZERO=b7c12350a90dc8f5 \
  -D CODE=host_unreachable -D CMSG_LEVEL_IP=SOL_IP -D CMSG_TYPE_RECVERR=IP_RECVERR -D CMSG_LEVEL=SOL_IP \
  -D CMSG_TYPE=IP_RECVERR -D SOCK_FAMILY=AF_INET "$(basename "$script")"
