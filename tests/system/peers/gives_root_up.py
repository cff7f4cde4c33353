"""gives_root_up.py ADDRESS PORT HOW: a child gives rights up by HOW and writes over what memory it has in common with its
parent, which goes on."""
import ctypes
import os
import re
import signal
import socket
import struct
import sys

PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
address, port, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def capset(permitted):
    header = struct.pack("Ii", 0x20080522, 0)
    half = [permitted & 0xffffffff, permitted >> 32]
    data = b"".join(struct.pack("III", word, word, 0) for word in half)
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def arenas():
    """Start, end and inode of each mapping of an arena."""
    for line in open("/proc/self/maps"):
        found = re.match(r"(\w+)-(\w+) rw.s \w+ \S+ (\d+) +/memfd:bypass", line)
        if found:
            yield int(found[1], 16), int(found[2], 16), int(found[3])


def spoil():
    """Each page that there is: what looks like a pointer or a length is neither."""
    for start, end, _ in arenas():
        step = 1 << 20
        there = ctypes.create_string_buffer(step // PAGE)
        for at in range(start, min(end, start + (1 << 31)), step):
            if libc.mincore(at, step, there) != 0:
                continue
            for i, page in enumerate(there.raw):
                if page & 1:
                    ctypes.memset(at + i * PAGE, 0x41, PAGE)


def talk(listener, rounds):
    for _ in range(rounds):
        one = socket.create_connection(listener.getsockname())
        other = listener.accept()[0]
        for _ in range(40):
            one.sendall(bytes(3000))
            assert len(other.recv(3000, socket.MSG_WAITALL)) == 3000
            other.sendall(b"answer")
            assert one.recv(6, socket.MSG_WAITALL) == b"answer"
        one.close()
        other.close()


listener = socket.create_server((address, port))
talk(listener, 3)
before = list(arenas())
assert before, "nothing is accelerated"
child = os.fork()
if child == 0:
    exec(how)
    held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]
    common = [one for one in arenas() if one in before]
    print("in common:", common, [name for name in held if "bypass" in name], flush=True)
    spoil()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
talk(listener, 20)
sockets = [socket.socket() for _ in range(500)]
talk(listener, 3)
print("unharmed", flush=True)
