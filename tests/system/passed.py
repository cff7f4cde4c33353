"""A process passes sockets of the port to another process (SCM_RIGHTS), which goes on with them.
passed.py NAME...   (no name: lists them)"""
import os
import random
import re
import shutil
import signal
import subprocess

from harness import HERE, Skip, check, free_port, kill_one, run_named
from sides import leaves_nobody_to_ask, on

CASES = {}


def scenario(*wires):
    return lambda function: on(CASES, *wires)(leaves_nobody_to_ask(function))


def passes(side, what, client, *words):
    """What the passing processes and their client have seen."""
    port = free_port()
    server = side.start_python("server", "passes.py", what, side.address, port, *words, until="ready")
    told = side.run("client", "/usr/bin/python3", "-uc", client, side.address, port).decode()
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


@scenario("vhost", "veth", "shm", "rc")
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


KILLED = """
import socket, sys
address = sys.argv[1], int(sys.argv[2])
for turn in range(20):
    connection = socket.create_connection(address, 30)
    try: print(connection.recv(100), flush=True)
    except ConnectionResetError: print(b"")
last = socket.create_connection(address, 30)
last.sendall(b"last\\n")
print(last.makefile().read())
"""


@scenario("vhost", "veth")
def one_is_killed_at_any_moment(side):
    """The connection ends, wherever it was: with the sender, the receiver, or on its way."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    return passes(side, "killed", KILLED, seed)[0]  # a death inside the stack is told on standard error


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


SIX = """
import socket, sys
for turn in range(3):
    pair = [socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) for _ in range(2)]
    for connection in pair:
        connection.sendall(b"line %d\\n" % turn)
    print([connection.makefile().read() for connection in pair], flush=True)
"""


@scenario("vhost", "veth")
def multiprocessing_passes(side):
    """Python's three ways to make a process. Sockets go there by exec, by SCM_RIGHTS, and by a server of descriptors."""
    port = free_port()
    server = side.start_python("server", "multiprocesses.py", side.address, port, until="ready")
    told = side.run("client", "/usr/bin/python3", "-uc", SIX, side.address, port).decode()
    check(side.end(server) == 0, side.output(server))
    return told, side.output(server)


TWENTY = """
import socket, sys
address = sys.argv[1], int(sys.argv[2])
told = []
for turn in range(20):
    connection = socket.create_connection(address, 30)
    connection.sendall(b"line")
    told.append(connection.makefile().read())
print(sorted(set(told)), len(told))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.settimeout(0.5)
heard = b""
while not heard:
    datagrams.sendto(b"datagram", address)
    try: heard = datagrams.recv(100)
    except TimeoutError: pass
print(heard)
"""


@scenario("veth")
def a_cluster_of_node(side):
    if shutil.which("node") is None:
        raise Skip("no node")
    port = free_port()
    server = side.start("server", "node", os.path.join(HERE, "peers", "cluster.js"), side.address, port, until="ready", timeout=30)
    told = side.run("client", "/usr/bin/python3", "-uc", TWENTY, side.address, port).decode()
    side.kill(server)
    return told


HAPROXY = """
global
  stats socket {folder}/socket mode 600 level admin expose-fd listeners
  nbthread 2
defaults
  mode http
  timeout client 30s
  timeout server 30s
  timeout connect 30s
frontend one
  bind {address}:{port}
  http-request return status 200 content-type text/plain string "hello\\n"
"""
ASKS_ON = """
import select, socket, sys
count = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
    connection.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    answer = connection.makefile("rb").read()
    assert answer.endswith(b"hello\\n"), answer
    count += 1
    if count == 50: print("asks", flush=True)
print("all answered")
"""


@scenario("veth")
def haproxy_passes_its_listeners(side):
    """Its master begins anew under load. The new worker is passed the listeners (expose-fd), and no client is refused."""
    if shutil.which("haproxy") is None:
        raise Skip("no haproxy")
    port = free_port()
    with open(side.path("haproxy.cfg"), "w") as file:
        file.write(HAPROXY.format(folder=side.dir, address=side.address, port=port))
    server = side.start("server", "haproxy", "-W", "-db", "-f", side.path("haproxy.cfg"), until="Loading success")
    client = side.start("client", "/usr/bin/python3", "-uc", ASKS_ON, side.address, port, stdin=subprocess.PIPE, until="asks", timeout=30)
    master = int(re.search(r"\((\d+)\) : New worker", side.output(server)).group(1))
    # Between its first words and its loop it does not hear of the signal, also on the kernel's sockets.
    for _ in range(10):
        os.kill(master, signal.SIGUSR2)
        if side.soon(lambda: side.output(server).count("New worker") > 1, 5):
            break
    side.wait_for(server, "Former worker", 30)
    client.stdin.close()
    check(side.end(client) == 0, side.output(client))
    kill_one(master)
    return side.output(client)


run_named(CASES, "as on the kernel's sockets")
