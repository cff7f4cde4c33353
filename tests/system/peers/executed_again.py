"""executed_again.py ADDRESS PORT: a forking echo server that executes itself anew at SIGHUP, as sshd and exim do. Its
children have answered and closed what they had by then, and live on."""
import os
import signal
import socket
import sys

listener = socket.create_server((sys.argv[1], int(sys.argv[2])))


def execute(*_):
    listener.close()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
    os.execv(sys.executable, [sys.executable, *sys.argv])


signal.signal(signal.SIGHUP, execute)
print("ready", flush=True)
while True:
    connection = listener.accept()[0]
    if os.fork() == 0:
        listener.close()
        connection.sendall(connection.recv(100).upper())
        connection.close()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.pause()
    connection.close()
