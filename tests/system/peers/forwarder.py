"""forwarder.py A B LOSS REORDER SEED: passes frames between two interfaces, both ways, as they are (with the state of
their checksums), but loses and reorders so many per cent of them. Says "faulty" when fifty have met each."""
import random
import select
import socket
import sys

SOL_PACKET, PACKET_IGNORE_OUTGOING, PACKET_VNET_HDR, SO_RCVBUFFORCE = 263, 23, 15, 33


def attach(name):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    s.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    s.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    s.bind((name, 3))  # ETH_P_ALL
    s.setblocking(False)
    return s


def pass_on(source, sink, held):
    """Until nothing more lies there. A frame that is held back goes out behind the next one, or when there is none."""
    while True:
        try:
            frame = source.recv(1 << 17)
        except BlockingIOError:
            break
        dice = chance.random() * 100
        if dice < loss:
            count("lost")
            continue
        if dice < loss + reorder and not held:
            count("late")
            held.append(frame)
            continue
        put(sink, frame)
        while held:
            put(sink, held.pop())
    while held:
        put(sink, held.pop())


def count(what):
    counts[what] += 1
    if min(counts.values()) == 50 and counts[what] == 50:
        print("faulty", flush=True)


def put(sink, frame):
    try:
        sink.send(frame)
    except (BlockingIOError, OSError):
        pass  # lost, too


loss, reorder = float(sys.argv[3]), float(sys.argv[4])
chance = random.Random(int(sys.argv[5]))
a, b = attach(sys.argv[1]), attach(sys.argv[2])
held, counts = {a: [], b: []}, {"lost": 0, "late": 0}
print("ready", flush=True)
while True:
    for source in select.select([a, b], [], [])[0]:
        pass_on(source, b if source is a else a, held[source])
