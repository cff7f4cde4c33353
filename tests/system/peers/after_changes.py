"""after_changes.py CHANGE ADDRESS PORT: a program that changes what it runs in before, or after, its first socket, and is a
server all the same. Says how many bytes the mapping holds that it makes then, and serves one connection."""
import ctypes
import mmap
import resource
import socket
import sys

MIB = 1 << 20
change, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if change == "environment":
    ctypes.CDLL(None).clearenv()
listener = socket.create_server((address, port))
print("ready", flush=True)
connection = listener.accept()[0]
if change == "address_space":
    resource.setrlimit(resource.RLIMIT_AS, (200 * MIB, 200 * MIB))
room = len(mmap.mmap(-1, 16 * MIB))
connection.sendall(b"%d" % room)
