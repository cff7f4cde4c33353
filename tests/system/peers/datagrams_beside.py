"""datagrams_beside.py ADDRESS PORT FOLDER HOW CHILD...: root's master binds a datagram socket. When the file FOLDER/childN
appears it makes its Nth child, which gives root up. A child that `works` echoes datagrams; one that `pauses` never uses the
socket. Then the master pauses, or receives and echoes itself, as HOW says: pause, receive or poll. `receive once` does that
for three datagrams before the first child, too; and `leave` gives root up for a user of its own."""
import os
import select
import signal
import socket
import sys
import time

address, port, folder, how = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
bound.bind((address, port))
print("bound", flush=True)


def echo(left=-1):
    while left != 0:
        left -= 1
        if how == "poll":
            poll = select.poll()
            poll.register(bound, select.POLLIN)
            poll.poll()
        data, peer = bound.recvfrom(65536)
        bound.sendto(data, peer)


if how == "receive once":
    echo(3)
    print("has received", flush=True)
for number, what in enumerate(sys.argv[5:], 1):
    while not os.path.exists(os.path.join(folder, f"child{number}")):
        time.sleep(0.005)
    told, tells = os.pipe()
    if os.fork() == 0:
        os.setgid(65534)
        os.setuid(65534)
        os.write(tells, b"d")
        while what == "pauses":
            signal.pause()
        echo()
    os.close(tells)
    print("made" if os.read(told, 1) else "ended", number, flush=True)
if how == "leave":
    os.setgid(65533)
    os.setuid(65533)
    print("left", flush=True)
while how in ("pause", "leave"):
    signal.pause()
print("serves", flush=True)
echo()
