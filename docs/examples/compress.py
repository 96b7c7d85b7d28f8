#!/usr/bin/env python3
"""One trial: how fast zlib packs a file, block by block, at one level.

Speaks Tare's trial protocol, one JSON object a line on standard output.
"""

import argparse
import json
import sys
import time


def say(type, **rest):
    print(json.dumps({"type": type, **rest}), flush=True)


def missing(message, remedy):
    """This machine lacks something: not a failure, and no reason to stop the run."""
    say("error", message=message, missing=True, remedy=remedy)
    sys.exit(0)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--level", type=int, required=True)
    arguments.add_argument("--block", type=int, required=True, help="bytes per call")
    arguments.add_argument("--seconds", type=float, required=True, help="the measured part")
    arguments.add_argument("file")
    given = arguments.parse_args()

    say("version", protocol=1, program="compress.py 1.0")
    try:
        import zlib
    except ImportError:
        missing("this Python has no zlib", "install Python with zlib")
    try:
        with open(given.file, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        missing("there is no file " + given.file, "sh make-log.sh")
    # Whole blocks only, so that every operation does the same work.
    whole = len(data) - len(data) % given.block
    blocks = [data[at : at + given.block] for at in range(0, whole, given.block)]

    for block in blocks[:10]:  # the warm-up
        zlib.compress(block, given.level)
    say("start")

    # Nothing is printed while the clock runs.
    latencies, packed = [], []
    begin = now = time.perf_counter()
    while now - begin < given.seconds:
        packed.append(zlib.compress(blocks[len(packed) % len(blocks)], given.level))
        before, now = now, time.perf_counter()
        latencies.append(now - before)

    # Nor is anything checked: that is work of another kind.
    corrupt = sum(
        zlib.decompress(one) != blocks[at % len(blocks)] for at, one in enumerate(packed)
    )
    read = len(packed) * given.block
    say("sample", metric="throughput", value=read / (now - begin), unit="B/s")
    say("sample", metric="packed", value=sum(map(len, packed)) / read, unit="ratio")
    for latency in latencies:
        say("sample", metric="latency", value=latency, unit="s")
    say("counters", counters={
        "operations": len(packed),
        "bytes": read,
        "checked": len(packed),
        "corrupt": corrupt,
    })
    say("end")


main()
