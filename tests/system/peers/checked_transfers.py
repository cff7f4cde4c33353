"""checked_transfers.py ADDRESS PORT CONNECTIONS STOP: takes bytes from many_workers.py over so many connections at once and
compares each of them. Says `serves INDEX WORKER` when a connection has got something and `lost INDEX WORKER` when it ends, which is
then made anew; goes on until the file STOP is there. Then `wrong N`."""
import asyncio
import contextlib
import os
import random
import sys

address, port, connections, stop = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
SEEDS, SIZE = 8, 150_000
expected = [random.Random(seed).randbytes(SIZE) for seed in range(SEEDS)]
wrong = 0


async def transfer(index):
    """One connection, to its end."""
    global wrong
    worker, writer, whole = None, None, 0
    try:
        reader, writer = await asyncio.open_connection(address, port)
        worker = int(await reader.readline())
        while not os.path.exists(stop):
            seed = (index + whole) % SEEDS
            writer.write(f"{seed} {SIZE}\n".encode())
            if await reader.readexactly(SIZE) != expected[seed]:
                wrong += 1
            whole += 1
            if whole == 1:
                print(f"serves {index} {worker}", flush=True)
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        print(f"lost {index} {worker or repr(error)}", flush=True)
    if writer:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()  # an error that nobody asks for is printed, at any time


async def keep(index):
    while not os.path.exists(stop):
        await transfer(index)


async def main():
    await asyncio.gather(*(keep(index) for index in range(connections)))
    print(f"wrong {wrong}")


asyncio.run(main())
