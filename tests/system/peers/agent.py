"""Does what it is told, a line of JSON with Python source each, and answers with what came of it: the result, or the
error's name. One namespace for all of them."""
import hashlib
import json
import sys
import traceback

scope = {"__name__": "agent"}
exec("""
import array, ctypes, errno, fcntl, hashlib, os, random, resource, select, signal, socket, struct, subprocess, sys
import mmap, termios, threading, time

def pattern(start, count):
    \"\"\"Bytes that tell where in a stream they are.\"\"\"
    first = start // 8
    words = array.array("Q", range(first, (start + count) // 8 + 1)).tobytes()
    return words[start - first * 8:start - first * 8 + count]

def queued(s, request=termios.FIONREAD):
    return struct.unpack("i", fcntl.ioctl(s, request, b"\\0\\0\\0\\0"))[0]

def take(s, count, flags=0):
    \"\"\"So many bytes, or fewer at the stream's end.\"\"\"
    parts = []
    while count > 0:
        part = s.recv(min(count, 1 << 20), flags)
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)

def bounded(s, seconds=20):
    \"\"\"Blocking calls that fail with EAGAIN instead of waiting for ever.\"\"\"
    for name in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        s.setsockopt(socket.SOL_SOCKET, name, struct.pack("ll", seconds, 0))
    return s
""", scope)


def plain(value):
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = bytes(value)
        if len(value) <= 64:
            return "b:" + value.decode("latin-1")
        return f"{len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()[:16]}"
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)


def done(source):
    try:
        code = compile(source, "told", "eval")
    except SyntaxError:
        exec(source, scope)
        return None
    return plain(eval(code, scope))


for line in sys.stdin:
    try:
        answer = done(json.loads(line))
    except OSError as error:
        answer = scope["errno"].errorcode.get(error.errno, str(error))
    except Exception:
        answer = traceback.format_exc()
    print(json.dumps(answer), flush=True)
