"""Hostile programs by kind. Each one reaches its last line only if its attack succeeds.

A few end in `assert False`: `bench.attacks` measures the memory that they took, and their signals would end whoever
runs them.
"""

import platform

C = "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
FORK = "import os\ndef fork(work):\n    child = os.fork()\n    if not child:\n        work()\n        os._exit(0)\n    return child\n"

# Of each map a page stays: the kernel keeps all of it.
SHARED = (
    C
    + "import os\nc.mmap.restype = ctypes.c_void_p\nc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, "
    "ctypes.c_long]\nc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]\nsize = 96 << 20\nfor _ in range(12):\n"
    "    a = c.mmap(None, size, 3, {flags}, {file}, 0)\n    assert a not in (None, 2**64 - 1)\n    ctypes.memset(a, 1, size)\n"
    "    assert c.munmap(a + 4096, size - 4096) == 0"
)
MEMORY = {
    "bomb": "x = []\nwhile True:\n    x.append(bytearray(2**24))",
    "bomb in each process": FORK + "for _ in range(3): fork(lambda: bytearray(2**28))\nassert bytearray(2**28)",
    "semaphores": C + "for _ in range(700): assert c.semget(0, 32000, 0o600) >= 0",
    "memory shared by key": C + "assert c.shmget(0, 2**20, 0o1600) >= 0",
    "message queues": C + "for _ in range(1000): assert c.msgget(0, 0o600) >= 0",
    "queues with names": C + "assert c.mq_open(b'/q', 0o102, 0o600, None) >= 0",
    "shared maps, dropped": "import mmap\nm = mmap.mmap(-1, 700 << 20)\nfor at in range(0, 700 << 20, 4 << 20):\n"
    "    m[at : at + (4 << 20)] = bytes(4 << 20)\n    m.madvise(mmap.MADV_DONTNEED, at, 4 << 20)",
    "shared maps, a page of each kept": SHARED.format(flags=0x21, file=-1),
    "shared maps of a device": SHARED.format(flags=0x01, file="os.open('/dev/zero', os.O_RDWR)"),
    "shared maps, checked flags": SHARED.format(flags=0x23, file=-1),
    "shared maps made smaller": "import mmap\nkept = []\nfor _ in range(12):\n    m = mmap.mmap(-1, 96 << 20)\n"
    "    for at in range(0, 96 << 20, 4 << 20): m[at : at + (4 << 20)] = b'x' * (4 << 20)\n    m.resize(4096)\n    kept.append(m)",
    "blocks behind the end of its output": C
    + "c.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]\nassert c.fallocate(1, 1, 0, 3 << 30) == 0",
    "blocks behind the end of a file": "import os\nf = os.open('/tmp/f', os.O_RDWR | os.O_CREAT)\n"
    + C
    + "c.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]\nassert c.fallocate(f, 1, 0, 3 << 30) == 0",
    "an output made long": "import os\nos.ftruncate(1, 1 << 30)",
    "an output written far behind": "import os\nos.pwrite(1, b'x', 1 << 30)",
    "pages kept in pipes": "import os\nr, w = os.pipe()\nf = open('/tmp/f', 'w+b')\nf.write(bytes(65536))\nf.flush()\nos.splice(f.fileno(), w, 65536, offset_src=0)",
    "huge pages": "import ctypes, mmap\nmaps = []\nfor _ in range(120):\n    m = mmap.mmap(-1, 2**25, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n    m.madvise(14)\n"
    "    m[0 :: 2**21] = b'x' * 16\n    maps.append(m)\n    m.resize(4096)\nassert False",  # what is left of each must not keep all of it
    "huge pages switched on again": C + "assert c.prctl(41, 0, 0, 0, 0) == 0",
    "rules without limit": C + "for _ in range(50): assert c.syscall(444, b'\\xff\\xff' + bytes(14), 16, 0) >= 0",
    "socket buffers": "import socket\na, b = socket.socketpair()\na.setsockopt(1, 7, 2**24)",
    "many pipes": "import os\npipes = [os.pipe() for _ in range(600)]",
    "large pipes": "import fcntl, os\npipes = [os.pipe() for _ in range(25)]\n"
    "assert all(fcntl.fcntl(w, 1031, 2**24) >= 2**24 for _, w in pipes)",
    "many names": "for i in range(480_000): open(f'/tmp/{i:0240}', 'w').close()",
    "attributes": "import os\nopen('/tmp/a', 'w')\nfor i in range(1000): os.setxattr('/tmp/a', f'user.{i}', bytes(60_000))",
    "watched files": C + "w = c.inotify_init1(0)\nassert w >= 0",
    "a file in memory": "import os\nos.memfd_create('x')",
    "secret memory": C + "assert c.syscall(447, 0) >= 0",
    "keys": C
    + "for i in range(10_000): assert c.syscall(248, b'user', str(i).encode(), bytes(30_000), 30_000, -3) >= 0",
    "timers": C + "t = ctypes.c_void_p()\nfor _ in range(30_000): assert c.timer_create(0, None, ctypes.byref(t)) == 0",
    "signals in a queue": "import signal, os\nsignal.pthread_sigmask(0, {40})\n"
    + C
    + "for i in range(30_000): assert c.sigqueue(os.getpid(), 40, 0) == 0",
    "locks": "import fcntl\nf = open('/tmp/a', 'w')\nfor i in range(10**6): fcntl.lockf(f, 2, 1, 2 * i)",
    "asynchronous queues": C + "i = ctypes.c_ulong()\nassert c.syscall(206, 65_536, ctypes.byref(i)) == 0",
    "one large file": "f = open('/tmp/f', 'wb')\nwhile True:\n    f.write(bytes(2**20))",
    "files together": "for i in range(100):\n    open(f'/tmp/{i}', 'wb').write(bytes(2**20))",
    "a sparse file, filled": "f = open('/tmp/f', 'wb')\nf.seek(2**30)\nf.write(b'x')\nf.flush()",
    "output": "while True:\n    print('x' * 1000)",
    "raising its limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
}
TIME = {
    "endless loop": "while True:\n    pass",
    "endless sleep": "import time\ntime.sleep(600)",
    "silence": "import os, time\nos.close(1)\nos.close(2)\nwhile True:\n    pass",
    "waiting for input": "import sys\nassert sys.stdin.read()",
    "stopping itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "large power": "x = 9**9**9",
    "slow expression": "import re\nre.match('(a*)*b', 'a' * 40)",
    "threads that compute": "import threading\nwork = lambda: sum(range(10**12))\n"
    "for _ in range(3): threading.Thread(target=work).start()",
    "a chain of processes": "import os, time\nwhile True:\n    start = time.process_time()\n"
    "    while time.process_time() < start + 0.5: pass\n    if os.fork(): os._exit(0)",
    "children that nobody waits for": "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nfor _ in range(10**4):\n"
    "    if not os.fork():\n        sum(range(2 * 10**5))\n        os._exit(0)\n    time.sleep(0.01)",
    "ignoring its end": "import signal\nfor s in range(1, 32):\n    if s not in (9, 19): signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
    "fork bomb": "import os\nwhile True:\n    os.fork()",
    "many processes": "import os, time\nfor _ in range(7):\n    if not os.fork():\n        time.sleep(5)",
    "many threads": "import threading, time\nfor _ in range(9): threading.Thread(target=time.sleep, args=(5,)).start()",
    "a subprocess that stays": "import subprocess\nsubprocess.run(['sleep', '600'])",
}
ENDINGS = {
    "early end": "import os\nos._exit(0)",
    "exit": "import sys\nsys.exit(0)",
    "SystemExit in a thread": "import threading, os\nthreading.Thread(target=os._exit, args=(0,)).start()\nwhile True: pass",
    "an exit status like a signal": "import os\nos._exit(160)",
    "another program": "import os\nos.execv('/bin/true', ['true'])",
    "a crash": "import ctypes\nctypes.string_at(0)",
    "abort": "import os\nos.abort()",
    "killing itself": "import os\nos.kill(os.getpid(), 9)",
    "an end at exit": "import atexit, os\natexit.register(os._exit, 0)\n1 / 0",
    "an end in the error hook": "import sys, os\nsys.excepthook = lambda *_: os._exit(0)\n1 / 0",
    "endless recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "the word from input": "import os\nprint('\\n' + open(0).read() + '\\n', flush=True)\nos._exit(0)",
    "the word from its file": "import os, re\nfor w in re.findall('[0-9a-f]{32}', open(__file__).read()): print(f'\\n{w}')\nos._exit(0)",
    "the word from its arguments": "import os, sys\nprint(*map(str.strip, sys.orig_argv), *os.environ.values(), sep='\\n')\nos._exit(0)",
}
# Files that must not be read, and folders that must not be written to.
READS = "/etc/passwd /etc/shadow /etc/hosts /root/.bashrc /home /proc/1/environ /proc/self/maps /sys/kernel /var/log /dev/mem /dev/kmsg"
READS += " /proc/kallsyms /proc/keys /proc/net/tcp /proc/self/mountinfo /proc/1/root /proc/1/cwd /dev/pts /dev/shm /run /boot /srv"
READS += " /var/run/docker.sock /var/run/secrets /etc/machine-id /etc/ssh /etc/ssl/private /root/.ssh /root/.cache /lost+found"
OPENED = (
    "/proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/self/oom_score_adj /proc/self/mem /sys/power/state "
    "/sys/fs/cgroup/cgroup.procs /dev/kmsg /dev/watchdog /dev/tty /dev/ptmx /dev/shm/x /dev/net/tun /etc/ld.so.preload /run/x"
)
WRITES = "/ /usr /usr/bin /usr/lib /lib /bin /etc /dev /proc /sys /var /home /root"
FILES = {
    **{f"reading {path}": f"import os\nassert os.lstat({path!r})" for path in READS.split()},
    **{f"writing to {path}": f"open({path + '/planted'!r}, 'w')" for path in WRITES.split()},
    **{f"opening {path}": f"open({path!r}, 'w')" for path in OPENED.split()},
    "changing a program": "open('/usr/bin/env', 'r+b')",
    "changing rights": "import os\nos.chmod('/usr/bin/env', 0o777)",
    "a link to the system": "import os\nos.link('/usr/bin/env', '/tmp/env')",
    "a device": "import os, stat\nos.mknod('/tmp/d', stat.S_IFCHR | 0o600, os.makedev(1, 1))\nopen('/tmp/d')",
    "a program with rights": "import os, shutil\nshutil.copy('/usr/bin/env', '/tmp/e')\nos.chown('/tmp/e', 0, 0)",
    "going up": "import os\nos.chdir('/tmp/../../../..')\nassert os.path.exists('etc/passwd')",
    "a file of another program": "import os\nassert len(os.listdir('/tmp')) > 1",
    "reading a disk": "import glob\nassert glob.glob('/dev/sd*') + glob.glob('/dev/vd*') + glob.glob('/dev/nvme*')",
}
# Functions of the C library. Those that exist must fail; and a call by its number is refused, not only useless as it is.
CALLS = """
    ptrace(0, 0, 0, 0) | unshare(0x10000000) | unshare(0x20000) | unshare(0x40000000) | setns(0, 0) | chroot(b'/tmp')
    mount(b'none', b'/tmp', b'tmpfs', 0, None) | umount2(b'/tmp', 2) | pivot_root(b'.', b'.') | swapon(b'/tmp/x', 0)
    reboot(0x01234567) | sethostname(b'x', 1) | acct(None) | init_module(b'', 0, b'') | personality(0x0040000)
    syscall(298, b'', 0, -1, -1, 0) | syscall(321, 0, b'', 0) | syscall(323, 0) | syscall(425, 8, b'\\0' * 120)
    syscall(250, 0, -3, 1) | syscall(248, b'user', b'a', b'b', 1, -3) | syscall(303, -100, b'/usr', b'\\0' * 200, b'\\0' * 8, 0)
    syscall(304, 3, b'\\0' * 200, 0) | syscall(310, 1, 0, 0, 0, 0, 0) | syscall(311, 1, 0, 0, 0, 0, 0) | syscall(438, 0, 0, 0)
    syscall(428, -100, b'/usr', 0) | syscall(429, 0, b'', 0, b'', 0) | syscall(430, b'tmpfs', 0) | syscall(433, -100, b'/', 0)
    syscall(442, -100, b'/usr', 0, b'\\0' * 32, 32) | syscall(246, 0, 0, 0, 0) | syscall(320, 0, 0, 0, b'', 0) | setuid(0)
    setgid(0) | seteuid(0) | setresuid(0, 0, 0) | iopl(3) | klogctl(3, b'\\0' * 100, 100) | fanotify_init(0, 0) | nice(-5)
    syscall(443, 0, 0x80000100, 0, 0) | syscall(443, 1, 0x80000100, 0, 0) | syscall(275, 0, 0, 1, 0, 1, 0) | syscall(276, 0, 1, 1, 0)
    syscall(27, 0, 0, 0) | syscall(30, 0, 0, 0) | syscall(65, 0, 0, 0) | syscall(69, 0, 0, 0, 0) | syscall(134, 0) | syscall(136, 0, 0)
    syscall(139, 3) | syscall(149, 0, 0) | syscall(151, 1) | syscall(154, 0, 0, 0) | syscall(159, b'\\0' * 208) | syscall(171, b'x', 1)
    syscall(173, 0, 0, 0) | syscall(180, 0, 0, 0) | syscall(212, 0, 0, 0) | syscall(216, 0, 0, 0, 0, 0) | syscall(227, 0, b'\\0' * 16)
    syscall(237, 0, 0, 0, 0, 0, 0) | syscall(254, 0, b'/usr', 2) | syscall(256, 0, 0, 0, 0) | syscall(279, 0, 0, 0, 0, 0, 0)
    syscall(301, 0, 0, 0, 0, 0) | syscall(305, 0, b'\\0' * 208) | syscall(312, 1, 1, 0, 0, 0) | syscall(317, 1, 0, b'\\0' * 16)
    syscall(325, 0, 0, 0) | syscall(440, 0, 0, 0, 0, 0) | syscall(445, 0, 0, 0, 0) | syscall(446, 0, 0) | syscall(448, 0, 0)
    syscall(450, 0, 0, 0, 0) | syscall(451, 0, b'\\0' * 16, b'\\0' * 40, 0) | syscall(457, b'\\0' * 24, b'\\0' * 99, 99, 0)
    syscall(458, b'\\0' * 24, b'\\0' * 99, 9, 0) | syscall(459, 0, 0, 0, 0) | syscall(461, b'\\0' * 99, b'\\0' * 8, 0) | syscall(462, 0, 0, 0)
    ioctl(1, 0x40049409, 0) | ioctl(1, 0xC0045877, 0) | ioctl(0, 0x5412, b'x') | mknod(b'/tmp/p', 0o10600, 0) | syscall(0x40000000 + 39) | settimeofday(b'\\1' * 16, None) | vhangup() | quotactl(0, None, 0, None) | sched_setscheduler(0, 1, b'\\1\\0\\0\\0')
"""
REFUSED = " or ctypes.get_errno() != 1"
KERNEL = {
    call.strip(): f"{C}assert c.{call.strip()} != -1" + (REFUSED if call.strip().startswith("syscall") else "")
    for call in CALLS.replace("\n", "|").split("|")
    if call.strip()
    and (platform.machine() == "x86_64" or not call.strip().startswith("syscall"))  # whose numbers these are
}
FAMILIES = "UNIX INET INET6 NETLINK PACKET BLUETOOTH VSOCK ALG CAN TIPC".split()
FLUSHES = "fsync fdatasync syncfs sync_file_range".split()
# By clone, beside unshare; numbers of x86_64.
NAMESPACES = {
    "users": 1 << 28,
    "mounts": 1 << 17,
    "network": 1 << 30,
    "processes": 1 << 29,
    "queues": 1 << 27,
    "names": 1 << 26,
}
NAMESPACES = NAMESPACES | {"groups": 1 << 25} if platform.machine() == "x86_64" else {}
LIMITS = "AS NPROC NOFILE FSIZE CORE MEMLOCK MSGQUEUE CPU".split()
OTHERS = {
    "the host's name": "import os, socket\nassert os.uname().nodename != 'sandbox'",
    # They succeed without effect: only the kernel would notice that this file is not open.
    "the host's files out of its cache": f"{C}assert c.posix_fadvise(999, 0, 0, 4) != 0",
    **{f"the host's disk by {call}": f"{C}assert c.{call}(999, 0, 0, 0) != 0" for call in FLUSHES},
    **{
        f"a new namespace: {name}": f"{C}assert c.syscall(56, {flag} | 17, 0, 0, 0, 0) > 0"
        for name, flag in NAMESPACES.items()
    },
    **{
        f"more {limit}": f"import resource as r\nr.setrlimit(r.RLIMIT_{limit}, (r.RLIM_INFINITY,) * 2)"
        for limit in LIMITS
    },
    **{f"socket {name}": f"import socket\nsocket.socket(socket.AF_{name}, socket.SOCK_DGRAM)" for name in FAMILIES},
    "a program's pages put out": "import mmap\nf = open('/usr/bin/env', 'rb')\nm = mmap.mmap(f.fileno(), 0, flags=2, prot=1)\nm.madvise(21)",
    "a program's pages made cold": "import mmap\nf = open('/usr/bin/env', 'rb')\nm = mmap.mmap(f.fileno(), 0, flags=2, prot=1)\nm.madvise(20)",
    "a connection": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:1', timeout=1)",
    "signal to the first process": "import os\nos.kill(1, 9)\nassert False",
    "signals to all": "import os\nos.kill(-1, 9)\nassert False",
    "signal to the helper's group": "import os\nos.killpg(0, 9)",
    "the caller's process": "import os\nos.kill(os.getppid() + 1000, 0)",
    "the first process's memory": "open('/proc/1/mem', 'rb')",
    "an exclusive lock on a program": "import fcntl\nfcntl.flock(open('/usr/bin/env'), fcntl.LOCK_EX)",
    "a shared lock on a program": "import fcntl\nfcntl.lockf(open('/usr/bin/env'), fcntl.LOCK_SH)",
    "a lease on a program": "import fcntl\nassert fcntl.fcntl(open('/usr/bin/env'), 1024, 0) == 0",
    "news from a folder": "import fcntl, os\nfcntl.fcntl(os.open('/usr/bin', 0), 1026, 1)",
    "watching programs start": C + "assert c.inotify_add_watch(c.inotify_init1(0), b'/usr/bin', 0x20) >= 0",
}
PROGRAMS = {"memory": MEMORY, "time": TIME, "endings": ENDINGS, "files": FILES, "kernel": KERNEL, "others": OTHERS}
# Only these take long: tests leave them out where the same programs run a second time.
SLOW = {*TIME, "bomb", "output", "many names"}

# Wrong answers to `DOUBLE_TESTS` that try to pass all the same.
DOUBLE_TESTS = """
def check(candidate):
    assert candidate(2) == 4
    assert candidate("ab") == "abab"
    assert candidate([1]) == [1, 1]
    for number in range(7, 9):
        assert candidate(number) == 2 * number
    assert all(map(lambda number: candidate(number) == 2 * number, range(9, 12)))  # an end of iteration ends it too
check(double)
"""
SEND = "import os\ndef send(data):\n    for fd in range(3, 20):\n        try: os.write(fd, data)\n        except OSError: pass\n"
# The first five answers are right; the reply to the last calls is a text of the answer's choice.
REPLY = (
    "import json\nplain = json.dumps\nlast = None\ndef double(x):\n    global last\n    last = x\n    return 2 * x\n"
    "def reply(text): json.dumps = lambda *given, **more: text if last in (9, 10, 11) else plain(*given, **more)\n"
)
FORGERIES = {
    "equal to everything": "class E:\n    def __eq__(self, other): return True\ndef double(x): return E()",
    "a number equal to everything": "class E(int):\n    def __eq__(self, other): return True\ndef double(x): return E()",
    "a text equal to everything": "class E(str):\n    def __eq__(self, other): return True\ndef double(x): return E()",
    "a list equal to everything": "class E(list):\n    def __eq__(self, other): return True\ndef double(x): return E()",
    "a false class": "class E:\n    __class__ = int\n    def __eq__(self, other): return True\ndef double(x): return E()",
    "a class that pickles as code": "import os\nclass E:\n    def __reduce__(self): return os._exit, (0,)\ndef double(x): return E()",
    "code in a pickle": SEND + "def double(x): send(b'cbuiltins\\nexec\\n(S\"import os; os._exit(0)\"\\ntR.')",
    "attributes in a pickle": SEND
    + "def double(x): send(b'cbuiltins\\ngetattr\\n(cbuiltins\\nint\\nS\"__eq__\"\\ntR.')",
    "a class changed by a pickle": SEND
    + "PK = b'(Ncfractions\\nFraction\\n(N(V__eq__\\ncbuiltins\\nstr\\ndtb(I1\\nI2\\ntRt.'\ndef double(x):\n    send(PK)\n    os._exit(0)",
    "a pickle of answers in advance": SEND + "import pickle\ndef double(x): send(pickle.dumps((None, 4)) * 50)",
    "answers in advance": SEND + "def double(x): send(b'{\"tuple\": [null, 4]}\\n' * 50)",
    "answers in advance that are true": SEND + "def double(x): send(b'{\"tuple\": [null, true]}\\n' * 50)",
    "a kind that does not exist": REPLY + 'reply(\'{"tuple": [null, {"Equal": 1}]}\')',
    "a kind by its module": REPLY + 'reply(\'{"tuple": [null, {"builtins.eval": "1"}]}\')',
    "a kind with attributes": REPLY + 'reply(\'{"tuple": [null, {"Fraction": {"dict": [["__eq__", 1]]}}]}\')',
    "two kinds at once": REPLY + 'reply(\'{"tuple": [null, {"tuple": [], "list": []}]}\')',
    "not a number": REPLY + "reply('{\"tuple\": [null, NaN]}')",
    "a signalling number": REPLY + 'reply(\'{"tuple": [null, {"Decimal": "sNaN"}]}\')',
    "no pair": REPLY + "reply('[]')",
    "a pair of errors": REPLY + "reply('{\"tuple\": [[], []]}')",
    "an error that is a base": REPLY + 'reply(\'{"tuple": ["SystemExit", 0]}\')',
    "an error that leaves a generator": REPLY + 'reply(\'{"tuple": ["GeneratorExit", 0]}\')',
    "an error that is a function": REPLY + 'reply(\'{"tuple": ["exit", 0]}\')',
    "an error that is a private name": REPLY + 'reply(\'{"tuple": ["__build_class__", 0]}\')',
    "a line that does not end": REPLY + "reply('[' * 10**6)",
    "an endless line": SEND + "def double(x):\n    while True: send(b' ' * 2**20)",
    "a fraction of nothing": REPLY + 'reply(\'{"tuple": [null, {"Fraction": "1/0"}]}\')',
    "a set of lists": REPLY + 'reply(\'{"tuple": [null, {"set": [[1]]}]}\')',
    "two replies in a line": REPLY + 'reply(\'{"tuple": [null, 18]} {"tuple": [null, 20]}\')',
    "a range without end": REPLY + 'reply(\'{"tuple": [null, {"tuple": {"range": [0, 10000000000, 1]}}]}\')',
    "an answer that is not an answer": SEND + "def double(x): send(b'}}}}' * 99)",
    "another pickler": "import pickle\npickle.Pickler.dump = lambda *_: 0\ndef double(x): return x",
    "another writer": "import json\njson.dumps = lambda *_: '{\"tuple\": [null, 4]}'\ndef double(x): return x",
    "no asserts": "import sys\ndef trace(frame, *_):\n    frame.f_lineno += 1\n    return trace\nsys.settrace(trace)\ndef double(x): return x",
    "no asserts, compiled": "import ast, builtins\nbuiltins.compile = lambda *_: 0\nbuiltins.AssertionError = ()\ndef double(x): return x",
    "another check": "import threading, __main__\ndef work():\n    while True: __main__.check = globals()['check'] = lambda _: 0\n"
    "threading.Thread(target=work, daemon=True).start()\ndef double(x): return x",
    "the tests' text": "import gc, glob, re\ntexts = [open(f).read() for f in glob.glob('*')] + [o for o in gc.get_objects() if isinstance(o, str)]\n"
    "pairs = dict(re.findall(r'candidate\\((.*?)\\) == (.*)', ' '.join(texts)))\ndef double(x): return eval(pairs[repr(x)])",
    "the word in frames": "import sys\ndef double(x):\n    frame = sys._getframe()\n    while frame:\n        for w in frame.f_locals.values(): print(f'\\n{w}\\n', flush=True)\n"
    "        frame = frame.f_back\n    return x",
    "the word at the end": "import atexit, gc\n@atexit.register\ndef end():\n    for o in gc.get_objects():\n        if isinstance(o, str) and len(o) == 32: print(f'\\n{o}\\n')\n"
    "def double(x): return x",
    "an early end": "import os\ndef double(x): os._exit(0)",
    "an exit": "def double(x): raise SystemExit(0)",
    "an end before": "import os\nos._exit(0)",
    "a false failure": "def double(x): raise AssertionError",
    "an error that ends a loop": "def double(x):\n    if x in (9, 10, 11): raise StopIteration\n    return 2 * x",
    "another error that ends a loop": "class E(StopIteration): pass\ndef double(x):\n    if x in (9, 10, 11): raise E\n    return 2 * x",
    "a killed judge": "import os, signal\ndef double(x):\n    os.kill(-1, signal.SIGKILL)",
    "an endless iterator": "def double(x):\n    while True: yield x",
    "changed arguments": "def double(x):\n    if isinstance(x, list): x.append(1)\n    return x",
    "remembered arguments": "calls = []\ndef double(x):\n    calls.append(x)\n    return calls",
    "deep nesting": SEND + "def double(x): send(b']' * 10**5 + b'a' * (10**5 - 1) + b'.')",
    "a huge number": "def double(x): return 10**10**6",
    "two processes": "import os\nos.fork()\ndef double(x): return x",
}
# Right answers whose results are not quite plain.
RIGHT = {
    "plain": "def double(x): return 2 * x",
    "subclasses": "class I(int): pass\nclass S(str): pass\nclass L(list): pass\n"
    "def double(x): return {int: I, str: S, list: L}[type(x)](2 * x)",
    "numbers of other kinds": "class F(float): pass\ndef double(x): return F(2 * x) if isinstance(x, int) else 2 * x",
    "decimals": "from decimal import Decimal\ndef double(x): return Decimal(2 * x) if isinstance(x, int) else 2 * x",
    "fractions": "from fractions import Fraction\ndef double(x): return Fraction(2 * x) if isinstance(x, int) else 2 * x",
    "printing": "def double(x):\n    print('4' * 100)\n    return 2 * x",
    "a main part": "def double(x): return 2 * x\nif __name__ == '__main__':\n    print(double(3))",
}
