#!/bin/bash
# Sends 60-byte frames over a veth pair: trafgen with two processes, which bind themselves to the
# first two CPUs, in one direction; and `tare loadtest` with two threads in both, which also receives
# and accounts for each frame. By turns, so many rounds; prints millions of frames per second and
# the ratio. Needs root, two CPUs, iproute2, ethtool, python3 and netsniff-ng (trafgen); its network
# namespace ends with it.
#
# usage: beside-trafgen.sh [ROUNDS] [TARE]
set -euo pipefail
rounds=${1:-3} tare=${2:-tare}
space=tare-trafgen-$$ work=$(mktemp -d)
trap 'ip netns del "$space"; rm -r "$work"' EXIT
ip netns add "$space"
inside() { ip netns exec "$space" "$@"; }
inside sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
inside ip link add left numtxqueues 2 numrxqueues 2 type veth \
    peer name right numtxqueues 2 numrxqueues 2

mac() { inside ip -json link show "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["address"])'; }
frame() { # an IPv4 packet of UDP, 60 bytes without the checksum of Ethernet
    echo "{ eth(sa=$(mac "$1"), da=$(mac "$2")), ipv4(sa=10.0.0.1, da=10.0.0.2), udp(sp=7, dp=7), fill(0, 18) }"
}
frame left right >"$work/left.cfg"
frame right left >"$work/right.cfg"
for end in left right; do
    inside ip link set "$end" up
    trafgen --in "$work/$end.cfg" --out "$work/$end.pcap" --num 1 --cpus 1 >"$work/log"
done

# With GRO the other end takes frames by XDP, which trafgen does not use and is slower with.
gro() { for end in left right; do inside ethtool -K "$end" gro "$1"; done; }
sent() { # frames that both ends have sent
    inside ip -s -json link show | python3 -c '
import json, sys
print(sum(link["stats64"]["tx"]["packets"] for link in json.load(sys.stdin) if link["ifname"] != "lo"))'
}
by_trafgen() { # for two seconds
    local before after
    gro off
    before=$(sent)
    inside timeout 2 trafgen --dev left --in "$work/left.cfg" --cpus 2 >"$work/log" 2>&1 || true
    after=$(sent)
    echo $(((after - before) / 2))
}
by_tare() { # the highest of falling rates that is offered whole, for a second
    gro on
    while ! inside "$tare" loadtest transient --program constant --count 1 -D 1 -b "$rate" \
        --threads 2 --json "$work/left.pcap" A B left "$work/right.pcap" B A right \
        >"$work/result" 2>"$work/log"; do
        rate=$((rate * 97 / 100))
        echo "offered less than asked; next, $((rate / 1000000)) Mb/s" >&2
        [ "$rate" -gt 10000000 ] || { cat "$work/log" >&2; exit 1; }
    done
    echo $((rate * 109 / 100)) >"$work/rate"
    python3 -c '
import json, sys
trial = json.load(open(sys.argv[1]))["trials"][0]
print(sum(stream["tx_packets"] for stream in trial["streams"]))' "$work/result"
}

echo "round  trafgen  tare loadtest  ratio"
echo 1000000000 >"$work/rate"
for round in $(seq "$rounds"); do
    # Later rounds begin a little above what the last one reached.
    rate=$(cat "$work/rate")
    # In variables, so that a failure of either ends the script.
    theirs=$(by_trafgen) ours=$(by_tare)
    echo "$round $theirs $ours"
done | awk '{ printf "%5d %8.2f %14.2f %6.2f\n", $1, $2 / 1e6, $3 / 1e6, $3 / $2; fflush() }'
