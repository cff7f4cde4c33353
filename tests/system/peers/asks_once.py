"""asks_once.py ADDRESS PORT COUNT: sends a request on each of so many connections, says so, and waits for all answers."""
import socket
import sys

connections = [socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) for _ in range(int(sys.argv[3]))]
for connection in connections:
    connection.sendall(b"request")
print("asked", flush=True)
answers = [connection.recv(100) for connection in connections]
print(answers, flush=True)
sys.exit(0 if answers == [b"request"] * len(connections) else 1)
