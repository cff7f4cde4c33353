"""memcache_client.py ADDRESS PORT: sets, gets, increments and deletes over four connections at once; prints a digest."""
import hashlib
import random
import socket
import sys
import threading

results = [None] * 4


def exchange(file, text, lines=1):
    file.write(text)
    file.flush()
    return [file.readline() for _ in range(lines)]


def work(index):
    rng, digest = random.Random(index), hashlib.sha256()
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as s:
        file = s.makefile("rwb")
        for i in range(200):
            key, value = f"k{index}-{i}".encode(), rng.randbytes(rng.choice([1, 100, 5000, 200000 if i % 50 == 0 else 10]))
            digest.update(exchange(file, b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))[0])
            head = exchange(file, b"get %s\r\n" % key)[0]
            size = int(head.split()[3])
            got = file.read(size + 2)
            assert got[:-2] == value and file.readline() == b"END\r\n", "a value came back changed"
            digest.update(got)
        digest.update(exchange(file, b"set n%d 0 0 1\r\n5\r\n" % index)[0])
        digest.update(exchange(file, b"incr n%d 37\r\n" % index)[0])
        digest.update(exchange(file, b"delete n%d\r\n" % index)[0])
    results[index] = digest.hexdigest()


threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert all(results), "a connection failed"
print(" ".join(results))
