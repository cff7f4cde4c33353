"""mesh.py PORT OWN_ADDRESS OTHER...: echoes for the others, and has what it sends echoed by each of them, all at once; ends
when all are done with each other."""
import asyncio
import random
import sys

port, own, others = int(sys.argv[1]), sys.argv[2], sys.argv[3:]


async def open_connection(address):
    while True:
        try:
            return await asyncio.open_connection(address, port)
        except OSError:  # not there yet
            await asyncio.sleep(0.05)


async def ask(address, index):
    rng = random.Random(index)
    reader, writer = await open_connection(address)
    for _ in range(10):
        message = rng.randbytes(rng.choice([1, 1000, 20000, 300000]))
        writer.write(message)
        assert await asyncio.wait_for(reader.readexactly(len(message)), 20) == message, "the echo differs"
    writer.write_eof()
    assert await reader.read() == b"", "bytes behind the end"
    writer.close()


async def main():
    served, count = asyncio.Semaphore(0), 5

    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        served.release()

    server = await asyncio.start_server(echo, own, port)
    await asyncio.gather(*(ask(address, i) for address in others for i in range(count)))
    for _ in range(count * len(others)):
        await asyncio.wait_for(served.acquire(), 20)
    server.close()
    print(f"{count} connections with each of {len(others)}")


asyncio.run(main())
