"""worker_goes_on.py ADDRESS PORT HOW: what a process had open goes on when it gives rights up by HOW: connections with
bytes unread both ways, also one that its parent has too, a listener and an epoll set. Prints what it saw."""
import os
import select
import socket
import sys

address, port, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def take(connection, count):
    data = connection.recv(count, socket.MSG_WAITALL)
    return len(data), data[:1], data[-1:]


def pair(listener):
    one = socket.create_connection(listener.getsockname())
    other = listener.accept()[0]
    for end in (one, other):
        end.settimeout(20)
    for _ in range(40):
        one.sendall(b"q" * 100)
        take(other, 100)
        other.sendall(b"a" * 100)
        take(one, 100)
    return one, other


listener = socket.create_server((address, port))
listener.settimeout(20)
one, other = pair(listener)
one.sendall(b"1" * 30_000)
other.sendall(b"2" * 20_000)
word, answer = os.pipe()
child = os.fork()
if child == 0:
    seen = []
    mine, yours = pair(listener)  # the child's alone
    mine.sendall(b"3" * 10_000)
    events = select.epoll()
    events.register(other, select.EPOLLIN)
    exec(how)
    seen.append(take(yours, 10_000))
    yours.sendall(b"4" * 5000)
    seen.append(take(mine, 5000))
    seen.append([event for _, event in events.poll(20)])
    seen.append(take(other, 30_000))
    os.write(answer, b"read")
    seen.append([event for _, event in events.poll(20)])
    seen.append(take(other, 7))
    other.sendall(b"to the parent")
    third = listener.accept()[0]
    seen.append(take(third, 2000))
    third.sendall(b"served")
    new = pair(listener)
    new[0].close()
    seen.append(new[1].recv(1))
    print("child", seen, flush=True)
    os._exit(0)
seen = [take(one, 20_000)]
assert os.read(word, 4) == b"read"
one.sendall(b"further")
seen.append(take(one, 13))
third = socket.create_connection(listener.getsockname())
third.settimeout(20)
third.sendall(b"5" * 2000)
seen.append(take(third, 6))
seen.append(os.waitpid(child, 0)[1])
other.close()
seen.append(one.recv(1))
pair(listener)
print("parent", seen, flush=True)
print("done", flush=True)
sys.stdin.close()
