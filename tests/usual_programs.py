"""Programs as models write them, which the sandbox has to let run; and which system calls one of them would miss."""

import ctypes
import fcntl
import os
import platform
import select
import signal
import struct
import sys
from pathlib import Path

from nanochat.evals import contained

USUAL = {
    "modules": """
import abc, array, base64, bisect, calendar, cmath, collections, copy, csv, dataclasses, datetime, decimal, enum
import fractions, functools, hashlib, heapq, io, itertools, json, locale, logging, math, numbers, operator, pprint
import random, re, secrets, sqlite3, statistics, string, struct, textwrap, time, timeit, typing, unicodedata, unittest
import uuid, zlib
print(uuid.uuid4(), secrets.token_hex(), datetime.datetime.now(), time.strftime('%c'), random.random())
""",
    "a database in memory": """
import sqlite3
d = sqlite3.connect(':memory:')
d.execute('create table t(a)')
""",
    "files": """
import glob, os, pathlib, shutil, tempfile
d = tempfile.mkdtemp()
f = pathlib.Path(d, 'a')
f.write_text('x')
os.rename(f, d + '/b')
os.symlink('b', d + '/c')
os.link(d + '/b', d + '/e')
os.chmod(d + '/b', 0o600)
shutil.copy2(d + '/b', d + '/d')
print(os.listdir(d), os.stat(d + '/b'), os.statvfs('/'), glob.glob(d + '/*'))
os.truncate(d + '/b', 0)
os.utime(d + '/b')
os.sync()
os.fsync(os.open(d + '/b', os.O_RDWR))
os.mkdir(d + '/f')
shutil.rmtree(d)
""",
    "large files": """
import os
f = os.open('/tmp/f', os.O_RDWR | os.O_CREAT)
os.posix_fallocate(f, 0, 9999)
assert os.stat('/tmp/f').st_size == 9999
""",
    "threads": """
import queue, threading, time
q = queue.Queue()
ts = [threading.Thread(target=lambda: q.put(time.time())) for _ in range(2)]
[t.start() for t in ts]
[t.join() for t in ts]
assert q.qsize() == 2
""",
    "a pool of threads": """
from concurrent.futures import ThreadPoolExecutor
assert list(ThreadPoolExecutor(2).map(str, range(3))) == ['0', '1', '2']
""",
    "another program": """
import subprocess
assert b'HOME' in subprocess.run(['/usr/bin/env'], capture_output=True).stdout
""",
    "a child": """
import os
pid = os.fork()
if not pid: os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
print(os.getpgid(0), os.getsid(0), os.getgroups(), os.times(), os.sched_getaffinity(0))
print(os.getpriority(0, 0), os.uname())
""",
    "signals": """
import signal, time
signal.signal(signal.SIGALRM, lambda *_: print('a'))
signal.setitimer(signal.ITIMER_REAL, 0.02)
time.sleep(0.1)
signal.alarm(1)
signal.alarm(0)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
signal.raise_signal(signal.SIGUSR1)
assert signal.sigtimedwait([signal.SIGUSR1], 1)
""",
    "pipes and waiting": """
import os, select, selectors
r, w = os.pipe()
os.write(w, b'x')
assert select.select([r], [], [], 1)[0] == [r]
p = select.poll()
p.register(r)
assert p.poll(1)
s = selectors.DefaultSelector()
s.register(r, 1)
assert s.select(1)
""",
    "limits and recursion": """
import resource, sys, threading
print(resource.getrusage(0), resource.getrlimit(resource.RLIMIT_STACK))
sys.setrecursionlimit(10_000)
def f(n): return n and f(n - 1)
f(5000)
threading.stack_size(2**25)
t = threading.Thread(target=f, args=(5000,))
t.start()
t.join()
""",
    "input and output": """
import sys
assert sys.stdin.read() == ''
print('x' * 10_000)
sys.stderr.write('y')
print(sys.stdout.isatty())
""",
    "a private map": """
import mmap
m = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m[0] = 1
""",
    "the clock": """
import time
time.sleep(0.01)
print(time.get_clock_info('monotonic'), time.process_time(), time.thread_time(), time.localtime())
""",
    "an evaluation": """
print(eval('1 + 1'), exec('x = 2'), compile('1', '', 'eval'), globals().keys(), __file__, open(__file__).read())
""",
}
NOTIFY = 0x7FC00000  # a filter's result: another process is asked
NEW_LISTENER = 8
RECEIVE, SEND = 0xC0502100, 0xC0182101  # of the notifications


def missed_calls(program: str) -> set[int]:
    """Return the numbers of system calls that a program makes and the sandbox's tables do not have."""
    seccomp, pidfd_getfd = {"x86_64": 317, "aarch64": 277}[platform.machine()], 438
    library = ctypes.CDLL(None, use_errno=True)
    reads, writes = os.pipe()
    waits, goes_on = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        os.dup2(0, 1)
        os.dup2(0, 2)
        code = contained.instructions(otherwise=NOTIFY)
        buffer = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
        library.prctl(38, 1, 0, 0, 0)
        filter_of = struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))
        listener = library.syscall(seccomp, 1, NEW_LISTENER, filter_of)
        os.write(writes, struct.pack("i", listener))
        os.read(waits, 1)  # until the parent has the listener, which this process is about to lose
        os.execve(sys.executable, [sys.executable, "-IBS", "-c", program.replace("__file__", "'/usr/bin/env'")], {})
    number = struct.unpack("i", os.read(reads, 4))[0]
    assert number >= 0
    listener = library.syscall(pidfd_getfd, os.pidfd_open(child), number, 0)
    assert listener >= 0, os.strerror(ctypes.get_errno())
    os.write(goes_on, b"x")
    found = set()
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    try:
        while poll.poll(20_000) and (events := dict(poll.poll(0)).get(listener, 0)) & select.POLLIN and events:
            asked = bytearray(80)
            try:
                fcntl.ioctl(listener, RECEIVE, asked)
            except OSError:  # the caller has ended
                continue
            identifier, _, _, call = struct.unpack_from("QIIi", asked)
            found.add(call)
            fcntl.ioctl(listener, SEND, struct.pack("QqiI", identifier, 0, -1, 0))  # EPERM
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for descriptor in (listener, reads, writes, waits, goes_on):
            os.close(descriptor)
    return found


def call_name(number: int) -> str:
    """Return the name of a system call from the C headers, where they are installed."""
    for header in Path("/usr/include").glob("**/asm/unistd_64.h"):
        for line in header.read_text().splitlines():
            if line.startswith("#define __NR_") and line.endswith(f" {number}"):
                return line.split()[1].removeprefix("__NR_")
    return str(number)
