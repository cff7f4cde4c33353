"""drops_first.py ADDRESS PORT HOW: gives rights up by HOW, and only then makes its first socket, a listener that answers."""
import ctypes
import os
import socket
import struct
import sys

CAP_NET_BIND_SERVICE = 10
libc = ctypes.CDLL(None, use_errno=True)


def effective(wanted):
    """What is permitted stays so."""
    header = struct.pack("Ii", 0x20080522, 0)
    data = ctypes.create_string_buffer(24)
    assert libc.capget(header, data) == 0
    words = list(struct.unpack("6I", data.raw))
    words[0], words[3] = wanted & 0xffffffff, wanted >> 32
    assert libc.capset(header, struct.pack("6I", *words)) == 0


address, port, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
exec(how)
with socket.create_server((address, port), backlog=16) as listener:
    print("listening", flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)
