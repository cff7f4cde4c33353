"""bind_listen.py ADDRESS PORT...: listens at each port, all at once; prints `listens` or the error's name of each."""
import errno
import socket
import sys

kept = []
for port in map(int, sys.argv[2:]):
    try:
        kept.append(socket.create_server((sys.argv[1], port)))
        print("listens")
    except OSError as error:
        print(errno.errorcode[error.errno])
