"""Seals and opens ESP packets with scapy: a request a line of JSON, an answer a line of JSON.

open  {"op", "src", "dst", "spi", "key", "salt", "high", "packet"}
      -> {"inner", "next", "padding", "ttl", "tos", "df", "seq", "iv"} or {"refused"}
seal  {"op", "src", "dst", "spi", "key", "salt", "high", "seq", "next", "inner", "tos"}
      -> {"packet"}

"high" is the upper half of an extended sequence number, and null where there is none. "inner" of a dummy packet (next header 59)
is any bytes; behind an IP packet it may have more bytes than that, which are padding that hides the length.
"""

import json
import sys

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from scapy.config import conf
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.layers.ipsec import ESP, IPSecIntegrityError, SecurityAssociation
from scapy.packet import Raw, raw

conf.verb = 0
DUMMY = 59


def association(request, tunnel):
    high = request["high"]
    return SecurityAssociation(
        ESP,
        spi=request["spi"],
        seq_num=request.get("seq", 1),
        crypt_algo="AES-GCM",
        crypt_key=bytes.fromhex(request["key"] + request["salt"]),
        tunnel_header=tunnel,
        esn_en=high is not None,
        esn=high or 0,
    )


def outer_header(request, **fields):
    if ":" in request["src"]:
        return IPv6(src=request["src"], dst=request["dst"], **fields)
    return IP(src=request["src"], dst=request["dst"], **fields)


def open_packet(request):
    data = bytes.fromhex(request["packet"])
    v4 = data[0] >> 4 == 4
    packet = IP(data) if v4 else IPv6(data)
    assert packet.src == request["src"] and packet.dst == request["dst"], packet.summary()
    if v4:
        assert packet.len == len(data) and packet.ihl == 5 and packet.proto == 50, packet.show(dump=True)
        plain = packet.copy()
        del plain.chksum
        assert IP(raw(plain)).chksum == packet.chksum, "outer checksum"
    else:
        assert packet.plen + 40 == len(data) and packet.nh == 50, packet.show(dump=True)
    answer = {
        "ttl": packet.ttl if v4 else packet.hlim,
        "tos": packet.tos if v4 else packet.tc,
        "df": bool(packet.flags.DF) if v4 else True,
        "seq": packet[ESP].seq,
        "iv": packet[ESP].data[:8].hex(),
    }
    spi, seq, sealed = packet[ESP].spi, packet[ESP].seq, packet[ESP].data
    sa = association(request, outer_header(request))
    try:
        inner = raw(sa.decrypt(packet))
    except IPSecIntegrityError:
        return {"refused": "integrity"}
    # scapy throws the trailer away: looked at once more, without it.
    aad = spi.to_bytes(4, "big")
    if request["high"] is not None:
        aad += request["high"].to_bytes(4, "big")
    aad += seq.to_bytes(4, "big")
    nonce = bytes.fromhex(request["salt"]) + sealed[:8]
    plain = AESGCM(bytes.fromhex(request["key"])).decrypt(nonce, sealed[8:], aad)
    count = plain[-2]
    assert plain[: len(plain) - 2 - count] == inner, "scapy and cryptography differ"
    answer.update(inner=inner.hex(), next=plain[-1], padding=plain[-2 - count : -2].hex())
    return answer


def seal_packet(request):
    inner = bytes.fromhex(request["inner"])
    if request["next"] == DUMMY:
        # In transport mode, where scapy takes the next header from the packet.
        v6 = ":" in request["src"]
        packet = outer_header(request, **({"nh": DUMMY} if v6 else {"proto": DUMMY})) / Raw(inner)
        sealed = association(request, None).encrypt(packet)
    else:
        packet = IP(inner) if inner[0] >> 4 == 4 else IPv6(inner)
        tos = request["tos"]
        tunnel = outer_header(request, **({"tc": tos} if ":" in request["src"] else {"tos": tos}))
        sealed = association(request, tunnel).encrypt(packet)
    return {"packet": raw(sealed).hex()}


for line in sys.stdin:
    request = json.loads(line)
    answer = (open_packet if request["op"] == "open" else seal_packet)(request)
    print(json.dumps(answer), flush=False)
