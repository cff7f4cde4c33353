"""Ends that write all they have before either reads. server|client ADDRESS PORT CONNECTIONS BYTES WRITE READ: writes, and then
reads, once the files of these names are there. Says 'ready' (the server), 'connected', 'full' (no connection takes more),
and at last 'wrong' with how many connections did not bring what was sent."""
import os
import select
import socket
import sys
import time

role, address, (connections, count) = sys.argv[1], (sys.argv[2], int(sys.argv[3])), map(int, sys.argv[4:6])
may_write, may_read = sys.argv[6:8]
DATA = memoryview(bytes(i * 131 % 251 for i in range(count)))


class End:
    def __init__(self, connection):
        self.connection, self.sent, self.got, self.right = connection, 0, 0, True
        connection.setblocking(False)

    def write(self):
        try:
            while self.sent < count:
                self.sent += self.connection.send(DATA[self.sent:self.sent + 65536])
            self.connection.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass

    def read(self):
        """False: the stream has ended."""
        part = self.connection.recv(100000)
        self.right = self.right and part == DATA[self.got:self.got + len(part)]
        self.got += len(part)
        return bool(part)

    def watch(self, reads):
        """Once: who has written all and may not read yet wants nothing, EPOLLHUP neither."""
        wanted = (select.EPOLLOUT if self.sent < count else 0) | (select.EPOLLIN if reads else 0)
        if wanted:
            poll.modify(self.connection, wanted | select.EPOLLONESHOT)


if role == "server":
    listener = socket.create_server(address, backlog=1024)
    print("ready", flush=True)
    ends = [End(listener.accept()[0]) for _ in range(connections)]
else:
    ends = [End(socket.create_connection(address)) for _ in range(connections)]
print("connected", flush=True)
while not os.path.exists(may_write):
    time.sleep(0.01)
ends = {end.connection.fileno(): end for end in ends}
poll = select.epoll()
for number, end in ends.items():
    poll.register(number, select.EPOLLOUT | select.EPOLLONESHOT)
going, full, left = False, False, dict(ends)
while left:
    if not going and os.path.exists(may_read):
        going = True
        for end in left.values():
            end.watch(reads=True)
    events_now = poll.poll(0.2)
    if not events_now and not full:
        full = True
        print("full", flush=True)
    for number, events in events_now:
        end = left[number]
        if events & select.EPOLLOUT:
            end.write()
        ended = going and events & (select.EPOLLIN | select.EPOLLHUP) and not end.read()
        if ended and end.sent == count:
            poll.unregister(number)
            del left[number]
        else:
            end.watch(reads=going and not ended)
print("wrong", sum(not end.right or end.got != count for end in ends.values()), flush=True)
