"""A client of remote memory in Python, by the C library alone: client.py LIBRARY NODE."""

import ctypes
import sys
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p

OK, CLOSED, NO_COMPLETION, UNMAPPED = 0, 2, 6, 66
FOREVER = 2**64 - 1
SECOND = 10**9


class Options(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("timeout_ns", c_uint64),
        ("busy_ns", c_uint64),
        ("operations_max", ctypes.c_uint32),
        ("datagram_bytes", ctypes.c_uint32),
    ]


class Completion(ctypes.Structure):
    _fields_ = [
        ("id", c_uint64),
        ("value", c_uint64),
        ("data", c_void_p),
        ("len", c_size_t),
        ("status", c_int),
        ("reserved", c_int),
    ]


class Particulars(ctypes.Structure):
    _fields_ = [
        ("status", c_int),
        ("os_error", c_int),
        ("address", c_uint64),
        ("multiple", c_uint64),
        ("retry_after_ns", c_uint64),
        ("index", c_uint64),
    ]


class RemoteError(Exception):
    def __init__(self, library):
        particulars = Particulars()
        self.status = library.tfm_last_error(byref(particulars))
        self.address = particulars.address
        text = ctypes.create_string_buffer(256)
        library.tfm_last_message(text, len(text))
        super().__init__(text.value.decode())


def load(path):
    library = ctypes.CDLL(path)
    library.tfm_version.restype = c_char_p
    library.tfm_last_message.argtypes = [c_char_p, c_size_t]
    library.tfm_last_message.restype = c_size_t
    library.tfm_last_error.argtypes = [POINTER(Particulars)]
    number = POINTER(c_uint64)
    signatures = {
        "connect": [c_char_p, c_uint64, c_char_p, POINTER(Options), POINTER(c_void_p)],
        "disconnect": [c_void_p],
        "open": [c_void_p],
        "close": [c_void_p],
        "alloc": [c_void_p, c_uint64, number],
        "read": [c_void_p, c_uint64, c_void_p, c_size_t],
        "write": [c_void_p, c_uint64, c_char_p, c_size_t, c_void_p],
        "fetch_add": [c_void_p, c_uint64, c_uint64, c_void_p, number],
        "submit_read": [c_void_p, c_uint64, c_size_t, number],
        "poll": [c_void_p, c_uint64, POINTER(Completion)],
        "release": [c_void_p, POINTER(Completion)],
    }
    for name, types in signatures.items():
        getattr(library, "tfm_" + name).argtypes = types
    return library


class Session:
    def __init__(self, library, node):
        self.library = library
        self.handle = c_void_p()
        options = Options(size=ctypes.sizeof(Options), timeout_ns=60 * SECOND)
        self.check(library.tfm_connect(node.encode(), 0, None, byref(options), byref(self.handle)))

    def check(self, status):
        if status != OK:
            raise RemoteError(self.library)

    def call(self, name, *arguments):
        self.check(getattr(self.library, "tfm_" + name)(self.handle, *arguments))

    def number(self, name, *arguments):
        result = c_uint64()
        self.call(name, *arguments, byref(result))
        return result.value

    def read(self, address, length):
        buffer = ctypes.create_string_buffer(length)
        self.call("read", address, buffer, length)
        return buffer.raw

    def write(self, address, data):
        self.call("write", address, data, len(data), None)

    def completions(self):
        """Yields number, status and bytes of all operations that are outstanding."""
        completion = Completion()
        while self.library.tfm_poll(self.handle, FOREVER, byref(completion)) == OK:
            data = ctypes.string_at(completion.data, completion.len) if completion.data else b""
            result = completion.id, completion.status, data
            self.call("release", byref(completion))
            yield result


def refused(call, *arguments):
    try:
        call(*arguments)
    except RemoteError as error:
        return error
    raise AssertionError("it was not refused")


def main(path, node):
    library = load(path)
    session = Session(library, node)
    session.call("open")
    address = session.number("alloc", 1 << 20)
    assert session.read(address, 100) == bytes(100)

    # Blocking, with bytes of every value and more than a datagram.
    data = bytes(range(256)) * 40
    session.write(address + 5, data)
    assert session.read(address + 5, len(data)) == data
    assert session.number("fetch_add", address + 65536, 3, None) == 0
    assert session.number("fetch_add", address + 65536, 0, None) == 3

    # A hundred reads at once, one of which has no memory to read.
    missing = 0x123456000
    expected = {}
    for at in range(100):
        place = missing if at == 50 else address + 5 + at * 97
        number = session.number("submit_read", place, 64)
        assert number not in expected
        expected[number] = (UNMAPPED, b"") if at == 50 else (OK, data[at * 97 :][:64])
    for number, status, found in session.completions():
        assert expected.pop(number) == (status, found), number
    assert not expected, expected
    assert refused(lambda: session.check(library.tfm_last_error(None))).status == NO_COMPLETION

    # Errors are typed and have particulars.
    error = refused(session.read, missing, 16)
    assert (error.status, error.address) == (UNMAPPED, missing), error
    assert "allocate" in str(error), error

    session.call("close")
    session.call("disconnect")
    assert refused(session.call, "open").status == CLOSED
    print("version", library.tfm_version().decode(), "works")


main(*sys.argv[1:])
