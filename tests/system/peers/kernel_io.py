"""Transfers that go past the preload: aio_read() and its like, whose threads are libc's, and io_uring, whose are the
kernel's. For agents: `import kernel_io`."""
import ctypes
import mmap
import os
import struct
import time

libc = ctypes.CDLL(None, use_errno=True)  # what comes first: the preload's
libc_itself = ctypes.CDLL("libc.so.6", use_errno=True)
for each in libc, libc_itself:
    each.syscall.restype = ctypes.c_long


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class Aio:
    """One transfer with a struct aiocb of 64-bit Linux; no signal at its end."""
    READ, WRITE = 0, 1  # also LIO_READ and LIO_WRITE

    def __init__(self, opcode, fd, data, listed=False):
        self.buffer = ctypes.create_string_buffer(data, len(data))
        self.block = ctypes.create_string_buffer(168)
        struct.pack_into("iiixxxxQQ", self.block, 0, fd, opcode, 0, ctypes.addressof(self.buffer), len(data))
        struct.pack_into("i", self.block, 44, 1)  # SIGEV_NONE
        if listed:
            checked(libc.lio_listio(1, self.list(), 1, None))  # LIO_NOWAIT
        else:
            checked((libc.aio_read, libc.aio_write)[opcode](self.block))

    def list(self):
        return ctypes.byref(ctypes.c_void_p(ctypes.addressof(self.block)))

    def end(self, seconds=10):
        """What came of it: bytes read, the count written, or "pending"."""
        if libc.aio_suspend(self.list(), 1, struct.pack("ll", seconds, 0)) != 0:
            return "pending"
        error = libc.aio_error(self.block)
        if error != 0:
            return os.strerror(error)
        count = libc.aio_return(self.block)
        opcode = struct.unpack_from("i", self.block, 4)[0]
        return self.buffer.raw[:count] if opcode == self.READ else count


class Ring:
    """An io_uring of eight entries, used for one transfer at a time."""
    SETUP, ENTER, READ, WRITE = 425, 426, 22, 23

    def __init__(self, through=libc):
        params = ctypes.create_string_buffer(120)
        self.fd = checked(through.syscall(self.SETUP, 8, params))
        of_submissions, of_completions = struct.unpack_from("8I", params, 40), struct.unpack_from("8I", params, 80)
        self.tail, self.mask, self.array = (of_submissions[i] for i in (1, 2, 6))
        self.completed, self.entries = of_completions[0], of_completions[5]
        self.submissions = mmap.mmap(self.fd, 4096, offset=0)
        self.completions = mmap.mmap(self.fd, 4096, offset=0x8000000)
        self.requests = mmap.mmap(self.fd, 8 * 64, offset=0x10000000)

    def begin(self, opcode, fd, data):
        self.buffer = ctypes.create_string_buffer(data, len(data))
        tail, = struct.unpack_from("I", self.submissions, self.tail)
        slot = tail & struct.unpack_from("I", self.submissions, self.mask)[0]
        self.requests[slot * 64:slot * 64 + 64] = bytes(64)
        struct.pack_into("BBHiQQI", self.requests, slot * 64, opcode, 0, 0, fd, 0, ctypes.addressof(self.buffer), len(data))
        struct.pack_into("I", self.submissions, self.array + 4 * slot, slot)
        struct.pack_into("I", self.submissions, self.tail, tail + 1)
        checked(libc.syscall(self.ENTER, self.fd, 1, 0, 0, None, 0))
        self.opcode = opcode

    def end(self, seconds=10):
        head, tail = (struct.unpack_from("I", self.completions, at)[0] for at in (self.completed, self.completed + 4))
        deadline = time.monotonic() + seconds
        while head == tail:
            if time.monotonic() > deadline:
                return "pending"
            time.sleep(0.001)
            tail, = struct.unpack_from("I", self.completions, self.completed + 4)
        result, = struct.unpack_from("i", self.completions, self.entries + 16 * (head & 15) + 8)
        struct.pack_into("I", self.completions, self.completed, head + 1)
        if result < 0:
            return os.strerror(-result)
        return self.buffer.raw[:result] if self.opcode == self.READ else result


def make_ring_of_liburing(module, function="make_ring"):
    """By a library that a module needs, which makes its system calls by itself (peers/uring_module.cc)."""
    result = getattr(ctypes.CDLL(module), function)(ctypes.create_string_buffer(120))
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result
