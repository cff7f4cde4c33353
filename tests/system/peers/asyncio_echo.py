"""asyncio_echo.py server ADDRESS PORT [CERTIFICATE KEY] | client ADDRESS PORT [CERTIFICATE]: 50 connections at once, with
TLS if there is a certificate, each echoing 20 messages of many sizes."""
import asyncio
import random
import ssl
import sys

role, address, port, files = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]


def tls():
    if not files:
        return None
    if role == "client":
        return ssl.create_default_context(cafile=files[0])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    return context


async def serve():
    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, address, port, ssl=tls())
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


async def one(index):
    rng = random.Random(index)
    reader, writer = await asyncio.open_connection(address, port, ssl=tls())
    total = 0
    for _ in range(20):
        message = rng.randbytes(rng.choice([1, 10, 1000, 20000, 150000]))
        writer.write(message)
        got = await asyncio.wait_for(reader.readexactly(len(message)), 20)
        assert got == message, "the echo differs"
        total += len(message)
    if writer.can_write_eof():  # not with TLS
        writer.write_eof()
    else:
        writer.close()
        return total
    assert await reader.read() == b"", "bytes behind the end"
    writer.close()
    return total


async def main():
    if role == "server":
        await serve()
    print(sum(await asyncio.gather(*(one(i) for i in range(50)))))


asyncio.run(main())
