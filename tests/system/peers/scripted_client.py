"""scripted_client.py ADDRESS PORT FOLDER STEP...: connects and does what the steps say, in order: send=TEXT; take=COUNT:DIGEST
(so many bytes, of that SHA-256); shut (its sending); end (what comes to the end, or the error); reset; await=NAME and tell=NAME
(a file of FOLDER); acknowledged (all that was sent, by the other end's TCP)."""
import fcntl
import hashlib
import os
import socket
import struct
import sys
import termios
import time

folder = sys.argv[3]
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))


def take(what):
    count, wanted = what.split(":")
    digest, left = hashlib.sha256(), int(count)
    while left and (data := connection.recv(min(left, 1 << 16))):
        digest.update(data)
        left -= len(data)
    print("taken", "all" if left == 0 and digest.hexdigest() == wanted else f"wrong, {left} left", flush=True)


def await_file(name):
    while not os.path.exists(f"{folder}/{name}"):
        time.sleep(0.005)


def end(_):
    got = b""
    try:
        while data := connection.recv(1 << 16):
            got += data
        print("ended", got, flush=True)
    except OSError as error:
        print("failed", got, error.strerror, flush=True)


def reset(_):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def acknowledged(_):
    while struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"0000"))[0] != 0:
        time.sleep(0.005)


DO = {
    "send": lambda text: connection.sendall(text.encode()),
    "take": take,
    "shut": lambda _: connection.shutdown(socket.SHUT_WR),
    "end": end,
    "reset": reset,
    "acknowledged": acknowledged,
    "await": await_file,
    "tell": lambda name: open(f"{folder}/{name}", "w").close(),
}
for argument in sys.argv[4:]:
    name, _, what = argument.partition("=")
    DO[name](what)
