"""asyncio_echo.py server|client ADDRESS PORT: 50 connections at once, each echoing 20 messages of many sizes."""
import asyncio
import random
import sys

role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])


async def serve():
    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, address, port)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


async def one(index):
    rng = random.Random(index)
    reader, writer = await asyncio.open_connection(address, port)
    total = 0
    for _ in range(20):
        message = rng.randbytes(rng.choice([1, 10, 1000, 20000, 150000]))
        writer.write(message)
        got = await asyncio.wait_for(reader.readexactly(len(message)), 20)
        assert got == message, "the echo differs"
        total += len(message)
    writer.write_eof()
    assert await reader.read() == b"", "bytes behind the end"
    writer.close()
    return total


async def main():
    if role == "server":
        await serve()
    print(sum(await asyncio.gather(*(one(i) for i in range(50)))))


asyncio.run(main())
