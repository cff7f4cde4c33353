"""joined_datagrams.py receive ADDRESS PORT COUNT: prints the size of each of COUNT datagrams, all of counted bytes.
joined_datagrams.py send ADDRESS PORT: 20,500 bytes in one call, to be cut into datagrams of 1,000 (UDP_SEGMENT)."""
import socket
import sys

SOL_UDP, UDP_SEGMENT = 17, 103
DATA = bytes(i % 251 for i in range(20500))

role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if role == "send":
    s.setsockopt(SOL_UDP, UDP_SEGMENT, 1000)
    s.sendto(DATA, (address, port))
else:
    s.bind((address, port))
    print("ready", flush=True)
    at = 0
    for _ in range(int(sys.argv[4])):
        datagram = s.recv(65536)
        print(len(datagram), "same" if datagram == DATA[at:at + len(datagram)] else "CHANGED", flush=True)
        at += len(datagram)
