"""dead_link.py ADDRESS PORT FIFO send|recv MILLISECONDS: connects, says so, and once somebody has opened FIFO for
writing uses the connection until it fails; prints how and after how many milliseconds. MILLISECONDS above 0 becomes
TCP_USER_TIMEOUT."""
import errno
import socket
import sys
import time

s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
if int(sys.argv[5]):
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(sys.argv[5]))
s.sendall(b"x")
print("connected", flush=True)
open(sys.argv[3]).close()
begin = time.monotonic()
try:
    s.sendall(b"y")
    while sys.argv[4] == "send":
        s.sendall(bytes(100000))
    s.recv(1)
    print("the end of the stream")
except OSError as error:
    print(errno.errorcode[error.errno], int((time.monotonic() - begin) * 1000))
