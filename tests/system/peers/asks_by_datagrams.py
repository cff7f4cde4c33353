"""asks_by_datagrams.py ADDRESS PORT COUNT: sends so many datagrams at once, says so, and waits for an echo of each. Each is to
come once: with the last one's echo comes what has been doubled before."""
import socket
import sys

asks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asks.connect((sys.argv[1], int(sys.argv[2])))
asks.settimeout(30)
wanted = [str(number).encode() for number in range(int(sys.argv[3]))]
for datagram in wanted:
    asks.send(datagram)
print("asked", flush=True)
answers = [asks.recv(100) for _ in wanted]
asks.send(b"last")
while (answer := asks.recv(100)) != b"last":
    answers.append(answer)
print(answers, flush=True)
sys.exit(0 if sorted(answers) == sorted(wanted) else 1)
