"""A process executes another program, and that one goes on with the sockets of the port that it inherits.
executed.py NAME...   (no name: lists them)"""
import contextlib
import os
import re
import signal
import subprocess

from families import Load, Nginx
from harness import LONG, Skip, alive, check, free_port, kill_one, make_file, run_named
from pumped import name_of
from sides import leaves_nobody_to_ask, on, served_by_another_user

CASES = {}


def scenario(*wires):
    return lambda function: on(CASES, *wires)(leaves_nobody_to_ask(function))


TALKS = """
import hashlib, os, socket, sys, threading
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
file = connection.makefile("rb")
for turn in range(int(sys.argv[3]) + 1):
    connection.sendall(b"line %d\\n" % turn)
    print(file.readline().decode().strip(), flush=True)
data = os.urandom(1 << 20)
def write():
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
threading.Thread(target=write).start()
print(hashlib.sha256(file.read()).digest() == hashlib.sha256(data).digest(), flush=True)
"""


@scenario("virtio", "shared", "shm")
def a_connection_goes_on(side):
    """An accepted connection goes through several images, and at last is the input and output of cat."""
    port, rounds = free_port(), 3
    server = side.start_python("server", "handed_on.py", rounds, side.address, port, until="ready")
    client = side.run("client", "/usr/bin/python3", "-uc", TALKS, side.address, port, rounds).decode()
    check(side.end(server) == 0, side.output(server))
    return client.split("\n"), side.output(server).count("True True")


ASKS = """
import socket, sys
for word in sys.argv[3:]:
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
    connection.sendall(word.encode() + b"\\n")
    print(connection.makefile().read().strip(), flush=True)
"""


@scenario("vhost", "shared")
def a_listener_goes_on(side):
    """Clients connect at any moment, and none is refused or reset."""
    port, words = free_port(), ["one", "again", "two", "again", "again", "three", "end"]
    server = side.start_python("server", "inherits.py", "listener", side.address, port, until="ready")
    told = side.run("client", "/usr/bin/python3", "-uc", ASKS, side.address, port, *words).decode()
    check(side.end(server) == 0, side.output(server))
    return told.split()


WAKES = """
import socket, sys, time
address = sys.argv[1], int(sys.argv[2])
first = socket.create_connection(address, 30)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.settimeout(0.5)
sys.stdin.readline()  # it waits
second = socket.create_connection(address, 30)
second.sendall(b"second\\n")
heard = b""
while not heard:
    datagrams.sendto(b"datagram", address)
    try: heard = datagrams.recv(100)
    except TimeoutError: pass
first.sendall(b"first\\n")
print(heard, first.makefile().read())
"""


@scenario("virtio", "veth")
def an_epoll_set_goes_on(side):
    """With a listener, a connection and a datagram socket in it."""
    port = free_port()
    server = side.start_python("server", "inherits.py", "epoll", side.address, port, until="ready")
    client = side.start("client", "/usr/bin/python3", "-uc", WAKES, side.address, port, stdin=subprocess.PIPE)
    side.wait_for(server, "waits")
    client.stdin.write(b"go\n")
    client.stdin.close()
    check(side.end(client) == 0, side.output(client))
    check(side.end(server) == 0, side.output(server))
    return side.output(server), side.output(client)


TWO = """
import socket, sys
one, other = (socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) for _ in range(2))
print(other.makefile().read(), flush=True)
one.sendall(b"still there\\n")
print(one.makefile().read(), flush=True)
"""


@scenario("veth")
def what_exec_closes_ends(side):
    """A connection that exec closes (FD_CLOEXEC) ends behind what was written. Another one goes on."""
    port = free_port()
    server = side.start_python("server", "inherits.py", "closed", side.address, port, until="ready")
    told = side.run("client", "/usr/bin/python3", "-uc", TWO, side.address, port).decode()
    check(side.end(server) == 0, side.output(server))
    return told


BOTH_ASK = """
import socket, sys
one, other = (socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) for _ in range(2))
files = one.makefile(), other.makefile()
for turn in range(3):
    for connection, file in zip((one, other), files):
        connection.sendall(b"line %d\\n" % turn)
        print(file.readline().strip(), flush=True)
print([file.read() for file in files])
"""


@scenario("vhost", "shared")
def an_exec_fails(side):
    """Everything goes on as before, in each thread."""
    port = free_port()
    server = side.start_python("server", "inherits.py", "failed", side.address, port, until="ready")
    told = side.run("client", "/usr/bin/python3", "-uc", BOTH_ASK, side.address, port).decode()
    check(side.end(server) == 0, side.output(server))
    return told, side.output(server)


@scenario("vhost")
def children_become_cat(side):
    """As inetd's services. The master, which has the port, accepts on."""
    port = free_port()
    server = side.start_python("server", "inherits.py", "beside", side.address, port, until="ready")
    told = [side.run("client", "/usr/bin/python3", "-uc", TALKS_TO_CAT, side.address, port).decode() for _ in range(4)]
    check(side.end(server) == 0, side.output(server))
    return told


TALKS_TO_CAT = TALKS.replace("sys.argv[3]", "'3'")


@scenario("vhost", "veth", "shm")
def spawned_programs_go_on(side):
    """By posix_spawn() with its actions and attributes, and by vfork(): Python's subprocess."""
    port = free_port()
    server = side.start_python("server", "spawns.py", side.address, port, until="ready")
    told = [side.run("client", "/usr/bin/python3", "-uc", TALKS_TO_CAT, side.address, port).decode() for _ in range(5)]
    told.append(side.run("client", "/usr/bin/python3", "-uc", ONE_ASKS, side.address, port).decode())
    check(side.end(server) == 0, side.output(server))
    return told, side.output(server)


THREE = """
import socket, sys
address = sys.argv[1], int(sys.argv[2])
one, other = (socket.create_connection(address, 30) for _ in range(2))
def ask(connection, file):
    connection.sendall(b"line\\n")
    print(file.readline().strip(), flush=True)
files = one.makefile(), other.makefile()
ask(one, files[0])
ask(other, files[1])
ask(one, files[0])
third = socket.create_connection(address, 30)
ask(third, third.makefile())
ask(other, files[1])
print([file.read() for file in files])
"""


@scenario("vhost", "veth")
def the_owner_executes(side):
    """The process that has the port executes another program. Its child, which goes on, takes the port over."""
    port = free_port()
    server = side.start_python("server", "inherits.py", "owner", side.address, port, until="ready")
    told = side.run("client", "/usr/bin/python3", "-uc", THREE, side.address, port).decode()
    check(side.end(server) == 0, side.output(server))
    return told


ONE_ASKS = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
connection.sendall(b"line\\n")
print(connection.makefile().read(), flush=True)
"""


@scenario("veth")
def an_environment_without_the_library(side):
    """The program is executed with an environment of its own. It goes on with the connection, and sees that environment."""
    port = free_port()
    server = side.start_python("server", "inherits.py", "bare", side.address, port, until="ready")
    told = side.run("client", "/usr/bin/python3", "-uc", ONE_ASKS, side.address, port).decode()
    check(side.end(server) == 0, side.output(server))
    return told, side.output(server)


BUSY = """
import socket, sys, threading
address = sys.argv[1], int(sys.argv[2])
one, *others = (socket.create_connection(address, 30) for _ in range(6))
ended = []
def reads(connection):
    try:
        while connection.recv(1 << 20): pass
    except OSError: pass
    ended.append(connection)
def writes(connection):
    try:
        while True: connection.sendall(bytes(100_000))
    except OSError: pass
    ended.append(connection)
threads = [threading.Thread(target=act, args=(each,)) for act, each in zip((reads, reads, writes, writes, writes), others)]
for thread in threads: thread.start()
file = one.makefile()
one.sendall(b"become another\\nline\\n")
print(file.readline().strip(), flush=True)
for thread in threads: thread.join()
third = socket.create_connection(address, 30)
third.sendall(b"third\\n")
print(third.makefile().readline().strip(), file.read(), len(ended))
"""


@scenario("vhost", "veth")
def other_threads_are_in_calls(side):
    """They end, with their connections, which exec closes. One connection and the listener go on."""
    port = free_port()
    server = side.start_python("server", "inherits.py", "threads", side.address, port, until="ready")
    told = side.run("client", "/usr/bin/python3", "-uc", BUSY, side.address, port).decode()
    check(side.end(server) == 0, side.output(server))
    return told


ACTIVATED = """
import os, socket
print(os.environ["LISTEN_FDS"], "LD_PRELOAD" in os.environ, flush=True)
listener = socket.socket(fileno=3)
for _ in range(2):
    connection = listener.accept()[0]
    connection.sendall(connection.recv(100).upper())
    connection.close()
"""


@scenario("veth")
def systemd_gives_a_listener(side):
    """systemd-socket-activate waits for a connection, and executes the service with an environment of its own."""
    command, port = "/usr/bin/systemd-socket-activate", free_port()
    if not os.path.exists(command):
        raise Skip("no systemd-socket-activate")
    server = side.start("server", command, "-l", f"{side.address}:{port}", "/usr/bin/python3", "-uc", ACTIVATED, until="Listening")
    told = side.run("client", "/usr/bin/python3", "-uc", ASKS, side.address, port, "one", "two").decode()
    check(side.end(server) == 0, side.output(server))
    return told, side.output(server).splitlines()[-1]


KILLS = """
import os, random, signal, socket, sys, time
address, rounds = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
moments = random.Random(int(sys.argv[4]))
for turn in range(rounds):
    connection = socket.create_connection(address, 30)
    file = connection.makefile()
    pid = int(file.readline())
    time.sleep(moments.uniform(0, 0.06))  # it dies at any moment
    os.kill(pid, signal.SIGKILL)
    print(turn, repr(file.read()), flush=True)
"""


@scenario("vhost", "veth")
def killed_at_any_moment(side):
    """The process that has the port executes cat, and is killed meanwhile. Its peer sees the end of the connection, and another
    process of the family serves the next one."""
    port, rounds = free_port(), 200 if LONG else 12
    side.start_python("server", "inherits.py", "killed", side.address, port, until="ready")
    told = side.run("client", "/usr/bin/python3", "-uc", KILLS, side.address, port, rounds, 1, timeout=60 + 3 * rounds).decode()
    for pid in side.inhabitants():
        if name_of(pid) in ("cat", "python3"):
            kill_one(pid)
    side.until(lambda: not side.inhabitants(), "nothing is left")
    return told


SHELL = r'exec 3<>/dev/tcp/$0/$1; echo one | cat >&3; read -r line <&3; echo "$line"; cat file >&3; cat <&3 | sha256sum'


@scenario("veth")
def a_shell_gives_cat_its_connection(side):
    port = free_port()
    make_file(side.path("file"), 1 << 20)
    server = side.start("server", "/usr/bin/python3", "-uc", SHELL_SERVER, side.address, port, until="ready")
    told = side.run("client", "bash", "-c", SHELL, side.address, port).decode()
    check(side.end(server) == 0, side.output(server))
    return told


SHELL_SERVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
connection = listener.accept()[0]
connection.sendall(connection.recv(100))
got = b""
while len(got) < 1 << 20: got += connection.recv(1 << 16)
connection.sendall(got)
"""


def other_master(side, nginx):
    """The pid of the program that was executed last, once it has written that; 0 before."""
    with contextlib.suppress(FileNotFoundError, ValueError), open(side.path("nginx.pid")) as file:
        pid = int(file.read())
        return pid if pid != nginx.master else 0
    return 0


def parent_of(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"PPid:\s+(\d+)", status.read())[1])


@scenario("veth")
@served_by_another_user
def nginx_is_upgraded(side):
    """Under load: the new program inherits the listener (USR2), and the old one ends in peace. No request is lost."""
    nginx = Nginx(side)
    load = Load(nginx)
    for _ in range(2):
        old, workers = nginx.master, nginx.workers()
        os.kill(old, signal.SIGUSR2)
        nginx.master = side.until(lambda: other_master(side, nginx), "the new program has started")
        side.until(lambda: len([pid for pid in nginx.workers() if pid not in workers]) == 2, "it has workers")
        os.kill(old, signal.SIGQUIT)
        side.until(lambda: not alive(old) and parent_of(nginx.master) != old, "the old program ends, and init has waited for it")
    lost = load.stop()["lost"]
    check(all(key.endswith("between answers") for key in lost), f"cut in the middle of an answer: {lost}")
    served = not side.is_ours("server") or side.soon(lambda: side.count("tcp_passive_opens") > 20, 5)
    check(served, f"the kernel has served: {side.why()}")
    return nginx.quit()


run_named(CASES, "as on the kernel's sockets")
