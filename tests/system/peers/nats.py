"""Clients of a NATS server, by its protocol of lines.   nats.py ADDRESS PORT CONNECTIONS MESSAGES
Each connection subscribes to a subject, publishes so many messages to the next one's, of growing size, and reads its
own. Prints what came."""
import hashlib
import json
import selectors
import socket
import sys


class Client:
    def __init__(self, address, port, number, count):
        self.socket = socket.create_connection((address, port))
        self.lines, self.count, self.number = b"", count, number
        self.come, self.digest = 0, hashlib.sha256()
        self.info = json.loads(self.line().split(b" ", 1)[1])
        self.say(b'CONNECT {"verbose":false,"pedantic":true}\r\n' + f"SUB to.{number} 7\r\n".encode() + b"PING\r\n")
        assert self.line() == b"PONG"

    def say(self, data):
        self.socket.setblocking(True)
        self.socket.sendall(data)

    def fill(self):
        data = self.socket.recv(1 << 16)
        assert data, "the server has closed the connection"
        self.lines += data

    def line(self):
        while b"\r\n" not in self.lines:
            self.fill()
        line, self.lines = self.lines.split(b"\r\n", 1)
        return line

    def take(self):
        """What is there, without waiting for more."""
        while b"\r\n" in self.lines:
            head, rest = self.lines.split(b"\r\n", 1)
            if head == b"PING":
                self.lines = rest
                self.say(b"PONG\r\n")
                continue
            word, subject, _, size = head.split()
            assert (word, subject) == (b"MSG", f"to.{self.number}".encode()), head
            if len(rest) < int(size) + 2:
                return
            self.digest.update(rest[:int(size)])
            self.lines = rest[int(size) + 2:]
            self.come += 1

    def publish(self, to, i):
        payload = bytes([(to + i) % 251]) * (i * 97 % 9000)
        self.say(f"PUB to.{to} {len(payload)}\r\n".encode() + payload + b"\r\n")


def main():
    address, port, connections, messages = sys.argv[1], *map(int, sys.argv[2:])
    clients = [Client(address, port, n, messages) for n in range(connections)]
    selector = selectors.DefaultSelector()
    for client in clients:
        selector.register(client.socket, selectors.EVENT_READ, client)
    for i in range(messages):
        for n, client in enumerate(clients):
            client.publish((n + 1) % connections, i)
        while any(client.come <= i for client in clients):
            for key, _ in selector.select(20):
                key.data.fill()
                key.data.take()
    for client in clients:
        print(client.number, client.come, client.digest.hexdigest()[:16], client.info["max_payload"])


main()
