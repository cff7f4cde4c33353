"""threads_give_root_up.py ADDRESS PORT: children of which three threads at once give root up, and whose connection goes on.
Prints how each of them ended."""
import ctypes
import os
import socket
import sys
import threading

CHILDREN, THREADS, NOBODY = 10, 3, 65534
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
libc = ctypes.CDLL(None)  # its calls let the other threads run, os.setresuid() does not


def give_up(gate, answers):
    gate.wait()
    answers.append(libc.setresuid(NOBODY, NOBODY, NOBODY))


def be_child():
    one = socket.create_connection(listener.getsockname())
    other = listener.accept()[0]
    for end in (one, other):
        end.settimeout(20)
    for _ in range(40):
        one.sendall(b"q" * 100)
        other.recv(100, socket.MSG_WAITALL)
    gate, answers = threading.Barrier(THREADS), []
    threads = [threading.Thread(target=give_up, args=(gate, answers)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one.sendall(b"after")
    is_whole = answers == [0] * THREADS and other.recv(5, socket.MSG_WAITALL) == b"after"
    return 0 if is_whole and os.getresuid() == (NOBODY,) * 3 else 1


ends = []
for _ in range(CHILDREN):
    child = os.fork()
    if child == 0:
        os._exit(be_child())
    ends.append(os.waitpid(child, 0)[1])
print("done", ends, flush=True)
