"""A process passes sockets of the port to another process (SCM_RIGHTS), which goes on with them.
passed.py NAME...   (no name: lists them)"""
from harness import check, free_port, run_named
from sides import leaves_nobody_to_ask, on

CASES = {}


def scenario(*wires):
    return lambda function: on(CASES, *wires)(leaves_nobody_to_ask(function))


def passes(side, what, client, *words):
    """What the passing processes and their client have seen."""
    port = free_port()
    server = side.start_python("server", "passes.py", what, side.address, port, until="ready")
    told = side.run("client", "/usr/bin/python3", "-uc", client, side.address, port, *words).decode()
    check(side.end(server) == 0, side.output(server))
    return told, side.output(server)


KINDS = """
import socket, sys
address = sys.argv[1], int(sys.argv[2])
one = socket.create_connection(address, 30)
one.sendall(b"one\\n")
print(one.makefile().readline())
other = socket.create_connection(address, 30)
other.sendall(b"other\\n")
print(other.makefile().readline())
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.settimeout(30)
datagrams.sendto(b"datagram", address)
print(datagrams.recv(100), datagrams.recv(100))
"""


@scenario("vhost", "veth", "shm")
def sockets_of_all_kinds(side):
    return passes(side, "kinds", KINDS)


FORMS = """
import socket, sys
one, other = (socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) for _ in range(2))
files = one.makefile(), other.makefile()
for which in (0, 0, 1, 0, 1):
    (one, other)[which].sendall(b"line\\n")
    print(which, files[which].readline().strip(), flush=True)
print([file.read() for file in files])
"""


@scenario("virtio", "shared")
def every_form_of_message(side):
    """MSG_PEEK, MSG_CMSG_CLOEXEC, and too little room; then the receiver passes one back."""
    return passes(side, "forms", FORMS)


DROPPED = """
import socket, sys
address = sys.argv[1], int(sys.argv[2])
five = [socket.create_connection(address, 30) for _ in range(5)]
print([one.recv(100) for one in five])
last = socket.create_connection(address, 30)
last.sendall(b"last\\n")
print(last.makefile().read())
"""


@scenario("vhost", "veth")
def what_is_thrown_away_ends(side):
    return passes(side, "dropped", DROPPED)


MANY = """
import socket, sys
for turn in range(16):
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
    connection.sendall(b"%d\\n" % turn)
    print(connection.makefile().read().strip())
"""


@scenario("vhost")
def threads_pass_by_a_named_socket(side):
    return passes(side, "threads", MANY)


@scenario("veth")
def a_stranger_beside_a_relative(side):
    """Both have the other end. The stranger has no use for a ticket."""
    return passes(side, "stranger", MANY.replace("16", "1"))


run_named(CASES, "as on the kernel's sockets")
