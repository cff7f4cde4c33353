"""What the guest's servers are asked, by the kernel's TCP. One JSON object on the last line.

    ask.py trips ADDRESS PORT N PAUSE      round trips of PING, PAUSE seconds apart: milliseconds
    ask.py store ADDRESS PORT BYTES        redis takes a value and gives it back: MB/s each way, and whether it is the same
    ask.py echo ADDRESS PORT BYTES         a server sends all back: whether it is the same
    ask.py fetch ADDRESS PORT PATH         a file by HTTP: its MD5, MB/s
    ask.py requests ADDRESS PORT PATH N    by HTTP, each on a connection of its own: how many a second, how many failed
    ask.py mss ADDRESS PORT                bytes of a segment, as the connection has negotiated it
    ask.py wait ADDRESS PORT SECONDS       until somebody listens"""
import hashlib
import http.client
import json
import random
import socket
import sys
import threading
import time

what, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
PATIENCE = 20


def connect(patience=PATIENCE):
    return socket.create_connection((address, port), patience)


def exactly(end, count):
    got = bytearray()
    while len(got) < count:
        part = end.recv(min(count - len(got), 1 << 20))
        if not part:
            raise SystemExit(f"the connection ended after {len(got)} of {count} bytes")
        got += part
    return bytes(got)


def trips(count, pause):
    took = []
    with connect() as end:
        for _ in range(count):
            time.sleep(pause)  # the server is to be asleep
            start = time.monotonic()
            end.sendall(b"PING\r\n")
            answer = end.recv(64)
            if not answer:
                raise SystemExit("the connection ended")
            took.append((time.monotonic() - start) * 1e3)
    took.sort()
    return {"median": round(took[count // 2], 2), "worst": round(took[-1], 2)}


def store(count):
    value = random.Random(count).randbytes(count)
    with connect() as end:
        start = time.monotonic()
        end.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nv\r\n$%d\r\n" % count + value + b"\r\n")
        if (answer := exactly(end, 5)) != b"+OK\r\n":
            raise SystemExit(f"SET: {answer!r}")
        there = time.monotonic()
        end.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nv\r\n")
        head = b"$%d\r\n" % count
        got = exactly(end, len(head) + count + 2)
        back = time.monotonic()
    return {"in": round(count / (there - start) / 1e6, 2), "out": round(count / (back - there) / 1e6, 2),
            "same": got == head + value + b"\r\n"}


def echo(count):
    value = random.Random(count).randbytes(count)
    with connect() as end:
        sending = threading.Thread(target=end.sendall, args=(value,))
        sending.start()
        same = exactly(end, count) == value
        sending.join()
    return {"same": same}


def get(path):
    connection = http.client.HTTPConnection(address, port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        body = answer.read()
        return body if answer.status == 200 else None
    finally:
        connection.close()


def fetch(path):
    start = time.monotonic()
    body = get(path)
    if body is None:
        raise SystemExit(f"GET {path} was refused")
    return {"md5": hashlib.md5(body).hexdigest(), "MB/s": round(len(body) / (time.monotonic() - start) / 1e6, 2)}


def requests(path, count):
    start, failed = time.monotonic(), 0
    for _ in range(count):
        try:
            failed += get(path) is None
        except (OSError, http.client.HTTPException):
            failed += 1
    return {"a second": round(count / (time.monotonic() - start)), "failed": failed}


def wait(seconds):
    deadline = time.monotonic() + seconds
    while True:
        try:
            connect(1).close()
            return {"listens": True}
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"nobody listens at {address} port {port}: {error}") from None
            time.sleep(0.1)


def mss():
    with connect() as end:
        return {"mss": end.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)}


def main():
    if what == "mss":
        return mss()
    if what == "trips":
        return trips(int(sys.argv[4]), float(sys.argv[5]))
    if what == "store":
        return store(int(sys.argv[4]))
    if what == "echo":
        return echo(int(sys.argv[4]))
    if what == "fetch":
        return fetch(sys.argv[4])
    if what == "requests":
        return requests(sys.argv[4], int(sys.argv[5]))
    return wait(float(sys.argv[4]))


print(json.dumps(main()))
