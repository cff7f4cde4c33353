"""drops_one_by_one.py ADDRESS PORT FOLDER: root listens and makes a worker that gives root up for each file worker1, worker2
... that appears. A worker answers one request and ends. When `close` appears, the master closes its listener."""
import os
import socket
import sys
import time

address, port, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def wait_for(name):
    while not os.path.exists(os.path.join(folder, name)):
        time.sleep(0.005)


def work():
    os.setgid(65534)
    os.setuid(65534)
    print("works", flush=True)
    connection, _ = listener.accept()
    listener.close()
    with connection:
        connection.sendall(connection.recv(65536))
    os._exit(0)


listener = socket.create_server((address, port), backlog=16)
print("listening", flush=True)
for number in (1, 2, 3):
    wait_for(f"worker{number}")
    child = os.fork()
    if child == 0:
        work()
    os.waitpid(child, 0)
    print(f"ended {number}", flush=True)
wait_for("close")
listener.close()
print("closed", flush=True)
wait_for("end")
