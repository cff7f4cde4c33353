"""forked_echo.py MODE ADDRESS PORT: an echo server in the ways in which Python programs fork.
prefork: four children accept from one listener. forking: a child for each connection, the parent closes its copy.
pool: an asyncio server beside a pool of processes that does its work. daemon: three connections are made, and the
process goes into the background."""
import asyncio
import concurrent.futures
import os
import signal
import socket
import socketserver
import sys
import threading

mode, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])


def echo(sock):
    with sock:
        while data := sock.recv(65536):
            sock.sendall(data)


def listen():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(128)
    return listener


def prefork():
    listener, children = listen(), []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            while True:
                echo(listener.accept()[0])
        children.append(child)
    listener.close()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    print("ready", flush=True)
    signal.sigwait([signal.SIGTERM])
    for child in children:
        os.kill(child, signal.SIGTERM)
    print("ended by", sorted(os.waitpid(child, 0)[1] for child in children), flush=True)


def forking():
    class Server(socketserver.ForkingTCPServer):
        allow_reuse_address = True
        request_queue_size = 128

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            while data := self.request.recv(65536):
                self.request.sendall(data)

    with Server((address, port), Handler) as server:
        print("ready", flush=True)
        server.serve_forever(poll_interval=0.1)


def same(data):
    return bytes(data)


async def pool():
    async def on_connection(reader, writer):
        while data := await reader.read(65536):
            writer.write(await asyncio.get_running_loop().run_in_executor(workers, same, data))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(on_connection, address, port)
    with concurrent.futures.ProcessPoolExecutor(4) as workers:
        workers.submit(same, b"").result()  # they are forked here: none inherits a connection
        print("ready", flush=True)
        async with server:
            await server.serve_forever()


def daemon():
    listener = listen()
    print("listens", flush=True)
    kept = [listener.accept()[0] for _ in range(3)]
    for sock in kept:
        sock.sendall(sock.recv(100))
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        os.sched_yield()
    print("alone", flush=True)
    for sock in kept:
        threading.Thread(target=echo, args=(sock,)).start()
    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],)).start()


if mode == "pool":
    asyncio.run(pool())
else:
    {"prefork": prefork, "forking": forking, "daemon": daemon}[mode]()
