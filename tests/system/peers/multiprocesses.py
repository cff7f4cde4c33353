"""multiprocesses.py ADDRESS PORT: serves connections in processes of Python's multiprocessing, made in each way: a connection as an
argument, then one through a queue."""
import multiprocessing
import socket
import sys


def serve(connection, queue):
    for one in (connection, queue.get(timeout=30)):
        with one:
            one.sendall(one.makefile("rb").readline().upper())


if __name__ == "__main__":
    listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=16)
    print("ready", flush=True)
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        connection, _ = listener.accept()
        process = context.Process(target=serve, args=(connection, queue))
        process.start()
        connection.close()
        other, _ = listener.accept()
        queue.put(other)
        process.join()
        other.close()
        print(method, process.exitcode, flush=True)
