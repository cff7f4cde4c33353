"""asks_name.py ADDRESS PORT COUNT: asks a DNS server for the address of a.example (RFC 1035, section 4) and prints the answers."""
import socket
import sys

QUESTION = b"\x01a\x07example\x00\x00\x01\x00\x01"
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks:
    asks.connect((sys.argv[1], int(sys.argv[2])))
    asks.settimeout(1)
    answers = []
    for number in range(int(sys.argv[3])):
        query = number.to_bytes(2, "big") + b"\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00" + QUESTION
        for _ in range(20):
            try:
                asks.send(query)
                while (answer := asks.recv(512))[:2] != query[:2]:
                    pass
            except (TimeoutError, ConnectionRefusedError):
                continue
            record = 12 + len(QUESTION)  # its data lie behind a name of 2 bytes and 10 of type, class, TTL and length
            answers.append(socket.inet_ntoa(answer[record + 12:record + 16]))
            break
print(answers, flush=True)
