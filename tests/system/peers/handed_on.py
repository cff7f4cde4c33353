"""handed_on.py ROUNDS ADDRESS PORT: accepts a connection, and executes itself ROUNDS times with it, each time after it has
answered a line. The last image becomes cat, with the connection as its input and output.
handed_on.py ROUNDS FD N: what it executes."""
import os
import socket
import sys

rounds = int(sys.argv[1])
if "." in sys.argv[2]:
    listener = socket.create_server((sys.argv[2], int(sys.argv[3])))
    print("ready", flush=True)
    connection = listener.accept()[0]
    listener.close()
    turn = 0
else:
    connection, turn = socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3])
line = b""
while not line.endswith(b"\n"):
    part = connection.recv(1)
    if not part:
        break
    line += part
connection.sendall(b"%d %s" % (turn, line))
print("image", turn, connection.getsockname()[1] != 0, connection.getpeername()[0] != "", flush=True)
if turn == rounds:
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    os.execvp("cat", ["cat"])
os.set_inheritable(connection.fileno(), True)
os.execv(sys.executable, [sys.executable, __file__, str(rounds), str(connection.fileno()), str(turn + 1)])
