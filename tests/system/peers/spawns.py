"""spawns.py ADDRESS PORT: accepts connections, and spawns a program for each, in all ways. Each is cat on the connection, but
for two: a program that cannot be executed, after which the server answers itself, and one that accepts from the listener."""
import os
import signal
import socket
import subprocess
import sys

address, port = sys.argv[1], int(sys.argv[2])
ACCEPTS = """
import socket, sys
connection, _ = socket.socket(fileno=int(sys.argv[1])).accept()
connection.sendall(connection.makefile("rb").readline().upper())
"""


def by_vfork(connection):
    return subprocess.Popen(["cat"], stdin=connection, stdout=connection).wait


def by_spawn(connection):
    number = connection.fileno()
    actions = [(os.POSIX_SPAWN_DUP2, number, 0), (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_OPEN, 7, "/dev/null", os.O_RDONLY, 0),
               (os.POSIX_SPAWN_CLOSE, number)]
    pid = os.posix_spawnp("cat", ["cat", "-", "/dev/fd/7"], os.environ, file_actions=actions, setpgroup=0, setsid=False,
                          setsigmask=[signal.SIGUSR1], setsigdef=[signal.SIGPIPE])
    print("of its own group", os.getpgid(pid) == pid, flush=True)
    return lambda: os.waitpid(pid, 0)


def as_it_is(connection):
    os.set_inheritable(connection.fileno(), True)
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", f"exec cat <&{connection.fileno()} >&{connection.fileno()}"], os.environ)
    return lambda: os.waitpid(pid, 0)


def in_vain(connection):
    for spawn in (lambda: os.posix_spawn("/no/such/program", ["x"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, connection.fileno(), 0)]),
                  lambda: os.posix_spawnp("no-such-program", ["x"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, connection.fileno(), 0)]),
                  lambda: os.posix_spawn("/bin/cat", ["x"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 1000, 0),
                                                                                     (os.POSIX_SPAWN_DUP2, connection.fileno(), 1)]),
                  lambda: subprocess.Popen(["no-such-program"], stdin=connection)):
        try:
            spawn()
        except OSError as problem:
            print(type(problem).__name__, problem.errno, flush=True)
    while part := connection.recv(1 << 16):
        connection.sendall(part)
    return lambda: None


def with_listener(connection):
    child = subprocess.Popen([sys.executable, "-c", ACCEPTS, str(listener.fileno())], pass_fds=[listener.fileno()])
    by_vfork(connection)()
    return child.wait


listener = socket.create_server((address, port), backlog=16)
print("ready", flush=True)
for way in (by_vfork, by_spawn, as_it_is, in_vain, with_listener):
    connection, _ = listener.accept()
    ended = way(connection)
    connection.close()
    ended()
