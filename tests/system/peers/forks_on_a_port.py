"""forks_on_a_port.py ADDRESS PORT: the owner of a port forks, and the child says what memory it could write that is its
parent's, too. The library's arena is the family's."""
import os
import socket
import sys

listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
one = socket.create_connection(listener.getsockname())
other = listener.accept()[0]


def talk():
    one.sendall(b"q" * 3000)
    assert other.recv(3000, socket.MSG_WAITALL) == b"q" * 3000


def shared():
    """Name and inode of each mapping that others see what is written to."""
    lines = [line.split() for line in open("/proc/self/maps")]
    return {(line[5], line[4]) for line in lines if line[1] == "rw-s" and "bypass-arena" not in line[5]}


talk()
before = shared()
child = os.fork()
if child == 0:
    talk()  # its own statistics are there
    print("in common:", sorted(before & shared()), flush=True)
    os._exit(0)
os.waitpid(child, 0)
talk()
print("before:", len(before), "done", flush=True)
