"""patient_client.py ADDRESS PORT: connects, sends, and waits until the peer's stack has acknowledged every byte."""
import fcntl
import socket
import struct
import sys
import termios

s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30)
s.sendall(b"x" * 50)
poller = __import__("select").poll()
while struct.unpack("i", fcntl.ioctl(s, termios.TIOCOUTQ, struct.pack("i", 0)))[0] != 0:
    poller.poll(1)
print("acknowledged")
