"""What systemd does for a service whose socket it holds: activate.py PORT COMMAND...   (sd_listen_fds(3))"""
import os
import socket
import sys

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
