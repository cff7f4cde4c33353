"""ask_number.py ADDRESS PORT: prints what a server says before it closes; tries again for half a minute."""
import socket
import sys
import time

deadline = time.monotonic() + 30
while True:
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as s:
            if said := s.recv(100).decode():
                print(said)
                break
    except OSError:
        pass
    if time.monotonic() > deadline:
        sys.exit("nobody answered")
    time.sleep(0.02)
