"""udp_echo.py server ADDRESS PORT | client ADDRESS PORT COUNT: datagrams to an unconnected echo server and back."""
import random
import socket
import sys

role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if role == "server":
    s.bind((address, port))
    print("ready", flush=True)
    while True:
        data, peer = s.recvfrom(65536)
        s.sendto(data, peer)
s.settimeout(1)
rng, lost, wrong = random.Random(7), 0, 0
for i in range(int(sys.argv[4])):
    message = i.to_bytes(4, "big") + rng.randbytes(rng.choice([0, 10, 500, 1400, 4000, 60000]))  # the last two in fragments
    for attempt in range(5):
        s.sendto(message, (address, port))
        try:
            while True:  # an echo of an earlier attempt may come late
                data, peer = s.recvfrom(65536)
                if data[:4] == message[:4]:
                    break
        except socket.timeout:
            lost += 1
            continue
        wrong += data != message or peer != (address, port)
        break
    else:
        sys.exit("five datagrams in a row unanswered")
print("wrong", wrong)
