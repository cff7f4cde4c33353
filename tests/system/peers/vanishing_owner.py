"""vanishing_owner.py ADDRESS PORT PEER AGAIN: forks a child for each of two connections, which says its process ID there,
closes it and lives on. SIGUSR1: the first process closes its listener; SIGTERM: it ends; SIGHUP: it executes a program
without sockets. A child that is sent SIGUSR1 serves at ADDRESS, port AGAIN; SIGUSR2: it connects to PEER there."""
import os
import select
import signal
import socket
import sys

address, port, peer, again = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
SIGNALS = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP]
signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def say(text):
    os.write(1, f"{text}\n".encode())  # in one piece: others write there, too


def serve():
    with socket.create_server((address, again)) as listener:
        say(f"listens {os.getpid()}")
        with listener.accept()[0] as connection:
            connection.sendall(b"served\n")


def connect():
    """Without a call that waits, but for that it has connected."""
    with socket.socket() as connection:
        connection.setblocking(False)
        connection.connect_ex((peer, again))
        select.select([], [connection], [], 20)
        connection.sendall(b"connected\n")


def live_on():
    while True:
        {signal.SIGUSR1: serve, signal.SIGUSR2: connect}[signal.sigwait(SIGNALS[:2])]()


listener = socket.create_server((address, port))
say("ready")
for waits in (True, False):
    connection = listener.accept()[0]
    if os.fork() == 0:
        listener.close()
        if waits:
            connection.recv(100)
        connection.sendall(str(os.getpid()).encode())
        connection.close()
        live_on()
    connection.close()
signal.sigwait([signal.SIGUSR1])
listener.close()
say("nothing open")
if signal.sigwait([signal.SIGTERM, signal.SIGHUP]) == signal.SIGHUP:
    os.execv(sys.executable, [sys.executable, "-c", "import signal; print('executed', flush=True); signal.sigwait([signal.SIGTERM])"])
