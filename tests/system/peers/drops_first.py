"""drops_first.py ADDRESS PORT HOW [WORKERS]: gives rights up by HOW, and only then makes its first socket, a listener that
answers. With WORKERS that many children do, one after another: the next one when the one before is killed."""
import ctypes
import os
import signal
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
for _ in range(int(sys.argv[4]) if len(sys.argv) > 4 else 0):
    child = os.fork()
    if child == 0:
        break
    os.waitpid(child, 0)
else:
    if len(sys.argv) > 4:
        signal.pause()
exec(how)
with socket.create_server((address, port), backlog=16) as listener:
    print("listening", os.getpid(), flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)
