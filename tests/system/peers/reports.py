"""What a socket reports beside its bytes: time stamps, what is left, errors, signals; and how long a close lingers.
The server is asked, the client answers.   reports.py server|client ADDRESS PORT"""
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time

TCP_INQ, SO_TIMESTAMPNS, SO_TIMESTAMPING, SO_PEEK_OFF, IP_RECVERR, MSG_ERRQUEUE = 36, 35, 37, 42, 11, 0x2000
RECEIVED_BY_SOFTWARE = 24  # SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE


def say(*words):
    print("=", *words, flush=True)


def name_of(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]


def kinds(message):
    return sorted((level, kind) for level, kind, _ in message[1])


def stamped(ask, receive, expected):
    """The kernel stamps what comes only some milliseconds after the first socket has asked for it."""
    for _ in range(10_000):
        ask()
        found = kinds(receive())
        if expected in found:
            return found
    return found


def stream(connection):
    for level, option, value in ((socket.SOL_SOCKET, SO_TIMESTAMPNS, 1), (socket.IPPROTO_TCP, TCP_INQ, 1)):
        say("stream option", level, option, name_of(connection.setsockopt, level, option, value))
    say("stream", stamped(lambda: connection.sendall(b"q"), lambda: connection.recvmsg(1, 200), (1, SO_TIMESTAMPNS)))
    say("peek offset", name_of(connection.setsockopt, socket.SOL_SOCKET, SO_PEEK_OFF, 0))
    connection.sendall(b"q")
    say("peek", connection.recv(1, socket.MSG_PEEK), "again", connection.getsockopt(socket.SOL_SOCKET, SO_PEEK_OFF), connection.recv(1))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, os.O_RDWR | os.O_ASYNC)
    connection.sendall(b"q")
    say("signal", signal.sigtimedwait([signal.SIGIO], 10) is not None, connection.recv(1))


def datagrams(sock, peer):
    say("datagram option", name_of(sock.setsockopt, socket.SOL_SOCKET, SO_TIMESTAMPING, RECEIVED_BY_SOFTWARE))
    say("datagram", stamped(lambda: sock.sendto(b"q", peer), lambda: sock.recvmsg(9, 200), (1, SO_TIMESTAMPING)))
    say("kernel's option", name_of(sock.setsockopt, socket.SOL_SOCKET, 36, 7))  # SO_MARK
    sock.sendto(b"q", peer)
    say("answered", sock.recv(9))


def errors(sock, peer):
    say("errors", name_of(sock.setsockopt, socket.IPPROTO_IP, IP_RECVERR, 1))
    sock.sendto(b"nobody", (peer[0], 9))
    poll = select.poll()
    poll.register(sock, 0)
    say("poll", poll.poll(10_000)[0][1])
    data, control, flags, name = sock.recvmsg(100, 200, MSG_ERRQUEUE)
    error = struct.unpack("IBBB", dict((c[:2], c[2]) for c in control)[(0, IP_RECVERR)][:7])
    say("queued", data, error, flags, name[1])
    say("then", name_of(sock.recvmsg, 100, 200, MSG_ERRQUEUE), poll.poll(0))


def server(address, port):
    listener = socket.create_server((address, port))
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, port))
    print("ready", flush=True)
    connection, _ = listener.accept()
    stream(connection)
    _, peer = sock.recvfrom(9)
    datagrams(sock, peer)
    errors(sock, peer)
    connection.sendall(b"e")
    say("the end", connection.recv(9))
    say("stays until the client is through", sock.recv(9))


def client(address, port):
    connection = socket.create_connection((address, port))
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.sendto(b"here", (address, port))
    poll = select.poll()
    for one in (connection, sock):
        poll.register(one, select.POLLIN)
    while True:
        for number, _ in poll.poll():
            if number == sock.fileno():
                sock.sendto(*sock.recvfrom(9))
            elif connection.recv(1) == b"q":
                connection.sendall(b"a")
            else:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
                begun = time.monotonic()
                connection.close()
                say("lingered for ever", time.monotonic() - begun > 30)
                sock.sendto(b"over", (address, port))
                return


{"server": server, "client": client}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
