"""relayed_client.py ADDRESS PORT: does what the words say that come over a connection to relayed_steps.py. A thread serves
the newest connection: it answers a question, or sends many bytes back."""
import contextlib
import socket
import sys
import threading

address, port = sys.argv[1], int(sys.argv[2])
words = socket.create_connection((address, port), timeout=60)
listener = one = thread = None


def serve(connection):
    with contextlib.suppress(OSError):
        said = connection.recv(8, socket.MSG_WAITALL)
        if said == b"question":
            return connection.sendall(b"answer")
        while said and not said.endswith(b"\n"):
            said += connection.recv(1)
        left = int(said.split()[2]) if said else 0
        while left > 0 and (got := connection.recv(min(left, 65536))):
            connection.sendall(got)
            left -= len(got)
        connection.shutdown(socket.SHUT_WR)


def take(connection):
    global one, thread
    one = connection
    one.settimeout(30)
    thread = threading.Thread(target=serve, args=[one], daemon=True)
    thread.start()


def do(word, *more):
    global listener
    if word == "connect":
        try:
            take(socket.create_connection((address, int(more[0])), timeout=30))
        except OSError as error:
            return type(error).__name__
    elif word in ("listen", "unused"):
        made = socket.create_server((words.getsockname()[0], 0))
        number = made.getsockname()[1]
        if word == "listen":
            listener = made
        else:
            made.close()
        return number
    elif word == "accept":
        connection, peer = listener.accept()
        take(connection)
        return peer[1]
    elif word in ("close", "ended"):
        thread.join()
        if word == "close":
            one.close()
    return "done"


with words.makefile("rw") as lines:
    for line in iter(lines.readline, ""):
        lines.write(f"{do(*line.split())}\n")
        lines.flush()
