"""udp_bounce.py ADDRESS PORT COUNT: datagrams of one frame each, one at a time, that an echo sends back."""
import random
import socket
import sys

rng, wrong = random.Random(3), 0
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.connect((sys.argv[1], int(sys.argv[2])))  # so that a refusal is told
    s.settimeout(10)
    for i in range(int(sys.argv[3])):
        message = i.to_bytes(4, "big") + rng.randbytes(rng.choice([0, 10, 500, 1400]))
        s.send(message)
        wrong += s.recv(65536) != message
print("wrong", wrong)
