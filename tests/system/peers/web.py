"""web.py server ADDRESS PORT[,PORT...] [CERTIFICATE KEY]: an HTTP server with a thread for each connection. GET /N answers
with N bytes of a pattern, POST with the body's length and SHA-256, both with the port they came to in X-Port.
web.py client ADDRESS PORT [CERTIFICATE]: eight threads with a connection each check such a server's answers."""
import functools
import hashlib
import http.client
import http.server
import os
import signal
import ssl
import sys
import threading

SIZES = 0, 1, 1000, 20000, 150000, 1000000


@functools.cache
def pattern(size):
    return (bytes(range(251)) * (size // 251 + 1))[:size]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body):
        self.send_response(200)
        self.send_header("X-Port", str(self.server.server_port))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(pattern(int(self.path.split("?")[0][1:])))

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(f"{len(body)} {hashlib.sha256(body).hexdigest()}".encode())

    def log_message(self, *_):
        pass


def serve(address, ports, certificate=None, key=None):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # not by the signal itself: connections end
    for port in map(int, ports.split(",")):
        server = http.server.ThreadingHTTPServer((address, port), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            # The handshake is the connection's thread's, not the accepting one's.
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever).start()
    print("ready", flush=True)


def ask(address, port, context, totals):
    connection = http.client.HTTPSConnection(address, port, context=context, timeout=20) if context else http.client.HTTPConnection(address, port, timeout=20)
    total = 0
    for size in SIZES * 2:
        connection.request("GET", f"/{size}")
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read() == pattern(size), f"{size} bytes came changed"
        body = pattern(size)[::-1]
        connection.request("POST", "/", body)
        told = connection.getresponse().read().decode()
        assert told == f"{size} {hashlib.sha256(body).hexdigest()}", f"{size} bytes arrived changed: {told}"
        total += 2 * size
    totals.append(total)


role, address, port, *files = sys.argv[1:]
if role == "server":
    serve(address, port, *files)
else:
    totals, context = [], ssl.create_default_context(cafile=files[0]) if files else None
    threads = [threading.Thread(target=ask, args=(address, int(port), context, totals)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(totals) == len(threads), "a connection failed"
    print(sum(totals))
