"""What has passed on a wire: each RoCE v2 packet's ICRC, and what tshark has to say."""
import collections
import signal
import socket
import struct
import subprocess
import zlib

from harness import check

ROCE_PORT = 4791
ETHERNET, IPV4, UDP = 14, 20, 8
PACKET_BLOCK = 6  # pcapng


def icrc(packet):
    """Of an IPv4 packet without its ICRC (InfiniBand Architecture Specification, annex A17, 17.3.3)."""
    masked = bytearray(packet)
    masked[1] = masked[8] = masked[IPV4 + UDP + 4] = 0xFF  # TOS, TTL, and beside the BTH's queue pair number
    masked[10:12] = masked[IPV4 + 6:IPV4 + 8] = b"\xff\xff"  # both checksums
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + masked))


def frames(path):
    """Of a pcapng file of this machine's byte order, up to the first block that is not whole."""
    with open(path, "rb") as file:
        while len(head := file.read(8)) == 8:
            kind, length = struct.unpack("=II", head)
            block = file.read(length - 8)
            if kind == PACKET_BLOCK and len(block) == length - 8:
                yield block[20:20 + struct.unpack_from("=I", block, 12)[0]]


def packets(path):
    """The RoCE v2 packets over IPv4, each from its IP header to its ICRC."""
    for frame in frames(path):
        if frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_UDP and frame[36:38] == struct.pack(">H", ROCE_PORT):
            yield frame[ETHERNET:ETHERNET + struct.unpack_from(">H", frame, 16)[0]]


class Capture:
    """Of one interface of a side's role `outside`, while it is entered."""

    def __init__(self, side, interface):
        self.side, self.interface, self.path = side, interface, side.path("capture")

    def __enter__(self):
        self.child = self.side.start("outside", "dumpcap", "-q", "-i", self.interface, "-B", 64, "-w", self.path, until="Capturing on")
        return self

    def __exit__(self, *error):
        self.side.kill(self.child, signal.SIGINT)

    def count(self):
        """Packets by the address that sent them."""
        return collections.Counter(socket.inet_ntoa(packet[12:16]) for packet in packets(self.path))

    def check(self, addresses, least):
        """Each of the addresses has sent so many packets, and nothing is wrong with any packet."""
        self.side.until(lambda: all(self.count()[address] >= least for address in addresses), "dumpcap has written the packets")
        self.__exit__()
        wrong = [packet[:48].hex() for packet in packets(self.path) if icrc(packet[:-4]) != packet[-4:]]
        check(not wrong, f"{len(wrong)} ICRCs are wrong: {wrong[:5]}")
        remarks = subprocess.run(["tshark", "-r", self.path, "-Y", f"udp.dstport == {ROCE_PORT} and (_ws.malformed or _ws.expert or not infiniband)"],
                                 capture_output=True, text=True, check=True).stdout.splitlines()
        check(not remarks, "tshark remarks on\n" + "\n".join(remarks[:20]))
        print(f"{dict(self.count())} packets")
