"""wait_port.py ADDRESS PORT SECONDS: until a connection to the port succeeds."""
import socket
import sys
import time

deadline = time.monotonic() + float(sys.argv[3])
while True:
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2):
            break
    except OSError as error:
        if time.monotonic() > deadline:
            sys.exit(f"no connection to {sys.argv[1]}:{sys.argv[2]}: {error}")
        time.sleep(0.02)
