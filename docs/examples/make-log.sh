#!/bin/sh
# Writes a made-up log of 16 MB three times into the current folder: as it is (log.plain) and
# packed by gzip at its fastest (log.fast) and at its smallest (log.small).
set -eu
export LC_ALL=C
seq 1 250000 | awk '
    # A generator of its own, so that every machine gets the same log (Park and Miller, 1988).
    function random(limit) { state = state * 16807 % 2147483647; return state % limit }
    BEGIN { state = 1; split("GET GET GET POST PUT", verb); split("200 200 200 304 404 500", code) }
    {
        printf "10.0.%d.%d - - [12/Mar/2026:%02d:%02d:%02d] \"%s /item/%d\" %s %d\n",
            random(256), random(256), $1 / 9000, $1 / 150 % 60, $1 / 3 % 60,
            verb[1 + random(5)], random(50000), code[1 + random(6)], random(100000)
    }' | head -c 16000000 > log.plain
[ "$(wc -c < log.plain)" -eq 16000000 ] || { echo "make-log.sh: log.plain is too short" >&2; exit 1; }
gzip -1 -c log.plain > log.fast
gzip -9 -c log.plain > log.small
