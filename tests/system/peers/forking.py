"""forking.py ADDRESS PORT: an accelerated process forks; the child closes what it inherited, opens sockets of its
own on loopback, execs a program; the parent's connection goes on meanwhile."""
import os
import socket
import subprocess
import sys

s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30)


def echo(text):
    s.sendall(text)
    got = b""
    while len(got) < len(text):
        got += s.recv(65536)
    assert got == text


echo(b"before")
child = os.fork()
if child == 0:
    s.close()
    listener = socket.create_server(("127.0.0.1", 0))
    c = socket.create_connection(listener.getsockname())
    listener.accept()[0].sendall(b"kernel")
    os._exit(0 if c.recv(10) == b"kernel" else 1)
echo(b"x" * 100000)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child failed"
out = subprocess.run(["/bin/echo", "a program"], preexec_fn=lambda: None, capture_output=True, check=True).stdout
child = os.fork()
if child == 0:
    os.execv("/bin/true", ["true"])
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "exec failed"
echo(b"after")
print(out)
