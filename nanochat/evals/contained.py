"""The inside of the sandbox: this file runs as a process, contains itself step by step, and becomes the program.

nanochat.evals.sandbox runs it, with a task as JSON on the standard input. It uses the standard library only. To allow
one more system call, add it to ALLOWED.
"""

import contextlib
import ctypes
import errno
import json
import os
import platform
import re
import secrets
import signal
import struct
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NOBODY = 65534  # the program's user and group where the caller is not root
MAX_OPEN_FILES = 64
MAX_NAMES = 4096  # files and folders in one file system
MAX_SIGNALS = 64  # waiting signals and timers
POLL_SECONDS = 0.05  # between two looks at the processor time

# ---- what a contained program may do ----

# Devices can be written on a read-only mount.
READABLE = """
    /usr /bin /sbin /lib /lib64 /etc/ld.so.cache /dev/null /dev/zero /dev/urandom
""".split()

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # the kernel's numbers for architectures
# A filter's results, from linux/seccomp.h.
KILL_PROCESS = 0x80000000
ALLOW = 0x7FFF0000
FAIL_WITH = 0x00050000  # plus an error number
# The system calls that a program may make, with their numbers on x86_64 and on aarch64 (-: it has none): what Python,
# its standard library and usual programs need. All others fail, those of later kernels too: none can be forgotten.
ALLOWED = {
    "reading and writing": """
        read 0 63 | write 1 64 | readv 19 65 | writev 20 66 | pread64 17 67 | pwrite64 18 68 | preadv 295 69
        pwritev 296 70 | preadv2 327 286 | lseek 8 62 | close 3 57 | close_range 436 436 | dup 32 23 | dup2 33 -
        dup3 292 24 | pipe 22 - | pipe2 293 59 | sendfile 40 71 | copy_file_range 326 285 | ftruncate 77 46
        truncate 76 45 | select 23 - | pselect6 270 72 | poll 7 - | ppoll 271 73 | epoll_create 213 -
        epoll_create1 291 20 | epoll_ctl 233 21 | epoll_wait 232 - | epoll_pwait 281 22 | epoll_pwait2 441 441
        eventfd 284 - | eventfd2 290 19 | fcntl 72 25 | ioctl 16 29
    """,
    "files by name": """
        open 2 - | openat 257 56 | openat2 437 437 | creat 85 - | stat 4 - | fstat 5 80 | lstat 6 -
        newfstatat 262 79 | statx 332 291 | statfs 137 43 | fstatfs 138 44 | access 21 - | faccessat 269 48
        faccessat2 439 439 | getdents 78 - | getdents64 217 61 | getcwd 79 17 | chdir 80 49 | fchdir 81 50
        rename 82 - | renameat 264 38 | renameat2 316 276 | mkdir 83 - | mkdirat 258 34 | rmdir 84 - | unlink 87 -
        unlinkat 263 35 | link 86 - | linkat 265 37 | symlink 88 - | symlinkat 266 36 | readlink 89 -
        readlinkat 267 78 | chmod 90 - | fchmod 91 52 | fchmodat 268 53 | fchmodat2 452 452 | chown 92 -
        fchown 93 55 | lchown 94 - | fchownat 260 54 | umask 95 166 | utime 132 - | utimes 235 - | futimesat 261 -
        utimensat 280 88 | getxattr 191 8 | lgetxattr 192 9 | fgetxattr 193 10 | listxattr 194 11 | llistxattr 195 12
        flistxattr 196 13
    """,
    "memory": """
        brk 12 214 | mmap 9 222 | mprotect 10 226 | munmap 11 215 | mremap 25 216 | madvise 28 233 | membarrier 324 283
    """,
    "processes and threads": """
        clone 56 220 | fork 57 - | vfork 58 - | execve 59 221 | execveat 322 281 | exit 60 93 | exit_group 231 94
        wait4 61 260 | waitid 247 95 | getpid 39 172 | gettid 186 178 | getppid 110 173 | getpgid 121 155
        getpgrp 111 - | setpgid 109 154 | getsid 124 156 | setsid 112 157 | set_tid_address 218 96
        set_robust_list 273 99 | get_robust_list 274 100 | rseq 334 293 | arch_prctl 158 - | futex 202 98
        sched_yield 24 124 | sched_getaffinity 204 123 | sched_setaffinity 203 122 | sched_getparam 143 121
        sched_getscheduler 145 120 | sched_get_priority_max 146 125 | sched_get_priority_min 147 126
        sched_getattr 315 275 | sched_rr_get_interval 148 127 | getpriority 140 141 | setpriority 141 140
        getcpu 309 168 | pidfd_open 434 434 | getuid 102 174 | geteuid 107 175 | getgid 104 176 | getegid 108 177
        getresuid 118 148 | getresgid 120 150 | getgroups 115 158 | getrlimit 97 163 | setrlimit 160 164
        prlimit64 302 261 | getrusage 98 165 | times 100 153 | sysinfo 99 179 | uname 63 160
    """,
    "signals": """
        rt_sigaction 13 134 | rt_sigprocmask 14 135 | rt_sigreturn 15 139 | rt_sigpending 127 136
        rt_sigtimedwait 128 137 | rt_sigqueueinfo 129 138 | rt_tgsigqueueinfo 297 240 | rt_sigsuspend 130 133
        sigaltstack 131 132 | kill 62 129 | tkill 200 130 | tgkill 234 131 | pause 34 - | signalfd4 289 74
        restart_syscall 219 128
    """,
    "time and chance": """
        nanosleep 35 101 | clock_nanosleep 230 115 | clock_gettime 228 113 | clock_getres 229 114
        gettimeofday 96 169 | time 201 - | alarm 37 - | getitimer 36 102 | setitimer 38 103 | timer_create 222 107
        timer_settime 223 110 | timer_gettime 224 108 | timer_getoverrun 225 109 | timer_delete 226 111
        timerfd_create 283 85 | timerfd_settime 286 86 | timerfd_gettime 287 87 | getrandom 318 278
    """,
}
# Calls that fail in another way than with EPERM, or succeed without effect (0): their error number.
ANSWERED = {
    # They would make the host's disks work, or empty its cache.
    0: """
        sync 162 81 | syncfs 306 267 | fsync 74 82 | fdatasync 75 83 | sync_file_range 277 84 | msync 26 227
        fadvise64 221 223
    """,
    # The C library takes clone instead, with flags that a filter can read, and pwritev, which cannot write through.
    errno.ENOSYS: "clone3 435 435 | pwritev2 328 287",
    # It reserves blocks that no limit counts; the C library writes zeros instead.
    errno.EOPNOTSUPP: "fallocate 285 47",
}
# Of these only some uses are allowed: the number of an argument, and the values that it may have.
VALUES = {
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_DUPFD_CLOEXEC, F_GETPIPE_SZ; no locks, leases or news.
    "fcntl": (1, [0, 1, 2, 3, 4, 5, 1030, 1032]),
    # NORMAL to WILLNEED, DONTNEED, FREE, DONTFORK, DOFORK, HUGEPAGE, NOHUGEPAGE, DONTDUMP, DODUMP and guards of stacks;
    # not PAGEOUT and COLD, which put files of the host out of its cache.
    "madvise": (2, [0, 1, 2, 3, 4, 8, 10, 11, 14, 15, 16, 17, 102, 103]),
    # TCGETS, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
    "ioctl": (1, [0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451]),
}

# The kernel's constants, from linux/sched.h, sys/mount.h, linux/prctl.h, linux/filter.h, linux/seccomp.h.
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWTIME = 0x80
CLONE_OTHERS = 0x6E000000  # cgroup, uts, ipc, pid and net
MAP_SHARED = 0x01
MOUNT_FLAGS = {"rdonly": 1, "nosuid": 2, "nodev": 4, "remount": 32, "bind": 4096, "rec": 16384, "private": 262144}
MOUNT_SETATTR = 442  # the call's number, as older C libraries do not know the call
AT_RECURSIVE = 0x8000
PR_SET_PDEATHSIG = 1
# A filter's instructions, and offsets in the data that it reads.
LOAD = 0x20
IF_EQUAL = 0x15
IF_AT_LEAST = 0x35
IF_ANY_BIT = 0x45
RETURN = 0x06
CALL_NUMBER = 0
ARCHITECTURE = 4
FIRST_ARGUMENT = 16  # each has 8 bytes; the lower half comes first
X32_CALLS = 0x40000000  # on x86_64 a second set of call numbers begins here
# And the bits that an argument may not have. New namespaces would give rights; of a shared map the kernel keeps all
# pages while one is mapped, beyond the limit on the address space.
WITHOUT = {
    "clone": (0, CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWTIME | CLONE_OTHERS),
    "mmap": (3, MAP_SHARED),
}


def numbers(rows: str) -> dict[str, int]:
    """Return name → number on this machine, of the calls in rows of a table that it has."""
    column = 1 + list(AUDIT).index(platform.machine())
    found = [row.split() for row in rows.replace("\n", "|").split("|") if row.strip()]
    return {row[0]: int(row[column]) for row in found if row[column] != "-"}


# ---- steps ----


def _main() -> None:
    """Prepare the sandbox step by step, each giving up a right, and become the program."""
    task = json.load(sys.stdin)
    limits = SimpleNamespace(**task["limits"])  # sandbox.Limits
    contained = task["contained"]
    report = task["report"]  # a descriptor for the two processes that stay outside of the program
    signal.alarm(int(limits.seconds) + 1)  # if the caller cannot watch the time any more
    is_root = os.geteuid() == 0
    if contained:
        _enter_namespaces()
        # Now, because a new user forgets it.
        _call("end with the caller", "prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != task["caller"]:
            sys.exit("the caller has ended")
        # Two processes stay outside of the program: one watches it, one is its namespace's first process. When the
        # first process ends, the kernel kills all others in there.
        if first := os.fork():
            _watch(first, limits.cpu_seconds, report)
        signal.alarm(int(limits.seconds) + 1)  # not inherited; the watching process may end first
        _call("end with the parent", "prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
        _call("own mounts", "unshare", CLONE_NEWNS)
        _change_root(limits.file_bytes, task["readable"])
        if second := os.fork():
            while True:
                ended, status = os.wait()
                if ended == second:
                    _end_others()
                    os.write(report, f"{_next_number()} ".encode())
                    _exit_like(status)
        if is_root:
            # Become a user that no other sandbox has, from 2^30 on: the kernel counts processes by user.
            number = 2**30 + secrets.randbelow(2**24)
            os.setgroups([])
            os.setresgid(number, number, number)
            os.setresuid(number, number, number)
    os.close(report)
    Path("program.py").write_text(task["program"], encoding="utf-8")
    # The standard input has only the word, so that the program finds it empty.
    source, sink = os.pipe()
    os.write(sink, task["word"].encode())
    os.close(sink)
    os.dup2(source, 0)
    # Where all are one user, the kernel counts the sandbox's two processes too.
    own = 2 if contained and not is_root else 0
    _set_limits(limits, limits.processes + own)
    if contained:
        # A huge page stays whole while a byte of it is mapped: memory beyond the address space.
        # PR_SET_THP_DISABLE is 41.
        _call("no huge pages", "prctl", 41, 1, 0, 0, 0)
        _filter_calls()
    os.execve(
        sys.executable, [sys.executable, "-IB", "-c", task["launcher"]], {"HOME": "/tmp", "PATH": "/usr/bin:/bin"}
    )


def _call(step: str, name: str, *arguments: Any) -> None:
    """Call a function of the C library; OSError with the step's name if it fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")


def _exit_like(status: int) -> None:
    """End with a child's status."""
    os._exit(os.waitstatus_to_exitcode(status) % 256)  # negative for a signal


def _end_others() -> None:
    """Kill all processes of this namespace but its first one, which calls this, and wait for them.

    The kernel would kill them too, but it counts the processor time of those alone that somebody waits for.
    """
    assert os.getpid() == 1  # in any other place this would end everything
    with contextlib.suppress(ProcessLookupError):  # there are none
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # none is left
        while True:
            os.wait()


def _next_number() -> int:
    """Return the number of a new process, which ends at once: so many processes and threads this namespace has had."""
    number = os.fork()
    if not number:
        os._exit(0)
    os.wait()
    return number


def _watch(first: int, cpu_seconds: float, report: int) -> None:
    """Wait for a process and end with its status; kill it if all below it have used up the processor time together.

    report: a descriptor to write to, at the end: how many processes there were, and the processor time of all of them.
    """
    os.stat(f"/proc/self/task/{os.getpid()}/children")  # OSError: this kernel does not list children
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    used: dict[int, float] = {}  # processor time by process
    created = 0  # how many processes and threads there were
    while True:
        ended, status, usage = os.wait4(first, os.WNOHANG)
        if ended:
            # The kernel counts a process once it was waited for; one whose parent ignores its end was only seen here.
            known = max(usage.ru_utime + usage.ru_stime, sum(used.values()))
            os.write(report, f"{created} {known}".encode())
            _exit_like(status)
        processes = [first]
        for process in processes:  # which grows
            with contextlib.suppress(OSError):  # it has ended
                used[process] = time.clock_gettime(~process << 3 | 2)  # the kernel's name for its clock
                status_text = Path(f"/proc/{process}/status").read_text()
                created = max(created, int(re.findall(r"^NSpid:.*\s(\d+)$", status_text, re.MULTILINE)[0]))
                for children in Path(f"/proc/{process}/task").glob("*/children"):
                    processes += map(int, children.read_text().split())
        # A process that lived and ended between two looks has used less than the time between them. Each one counts as
        # that much, so a program also ends after cpu_seconds / POLL_SECONDS processes.
        if sum(used.values()) + POLL_SECONDS * created > cpu_seconds:
            os.kill(first, signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], POLL_SECONDS)


def _enter_namespaces() -> None:
    user, group = os.geteuid(), os.getegid()
    # Without root only an own user namespace gives the right to mount.
    _call("namespaces", "unshare", CLONE_OTHERS | (CLONE_NEWUSER if user else 0))
    _call("own name", "sethostname", b"sandbox", 7)  # else a program learns the host's
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {group} 1")


def _change_root(size: int, readable: list[str]) -> None:
    """Change to a read-only file system with the readable paths and an empty /tmp for `size` bytes."""
    root = "/proc"  # any folder that exists everywhere: outside, it stays as it is
    # Private: mounts in the sandbox do not show outside.
    _mount("none", "/", None, "rec private")
    _mount("tmpfs", root, "tmpfs", "nosuid nodev", f"mode=755,size=65536,nr_inodes={MAX_NAMES}")
    # First: a readable path may lie below it.
    Path(root, "tmp").mkdir()
    _mount("tmpfs", f"{root}/tmp", "tmpfs", "nosuid nodev", f"mode=1777,size={size},nr_inodes={MAX_NAMES}")
    paths = [*READABLE, *readable]
    python = os.path.realpath(sys.base_prefix)
    if not python.startswith("/usr"):
        paths.append(python)
    for path in filter(os.path.lexists, paths):
        _bind(path, root)
    # The old root is stacked on the new one, and then detached.
    os.chdir(root)
    _call("new root", "pivot_root", b".", b".")
    _call("old root", "umount2", b".", 2)  # MNT_DETACH
    _mount("none", "/", None, "remount bind rdonly")
    os.chdir("/tmp")


def _mount(source: str, target: str, kind: str | None, flags: str, data: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() if kind else None)
    number = ctypes.c_ulong(sum(MOUNT_FLAGS[flag] for flag in flags.split()))
    _call(f"mount of {target}", "mount", *words, number, data.encode())


def _bind(path: str, root: str) -> None:
    """Show a system path, read-only, at the same place below the new root."""
    target = Path(root + path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.islink(path):
        target.symlink_to(os.readlink(path))  # such as /lib -> usr/lib
        return
    if os.path.isdir(path):
        target.mkdir()
    else:
        target.touch()
    _mount(path, str(target), None, "bind rec")
    # Attributes to set (MOUNT_ATTR_RDONLY is 1, MOUNT_ATTR_NOSUID is 2), to clear, propagation, user namespace.
    # A remount would leave out what is mounted below.
    mount_attr = struct.pack("QQQQ", 1 | 2, 0, 0, 0)
    where = (-1, str(target).encode(), AT_RECURSIVE)
    _call(f"attributes of {path}", "syscall", MOUNT_SETATTR, *where, mount_attr, ctypes.c_size_t(len(mount_attr)))


def _set_limits(limits: SimpleNamespace, processes: int) -> None:
    """Limit this process and its children."""
    import resource

    bounds = {
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_CORE: 1,  # no core file, and no program that takes one either, as with 0
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
    }
    if sys.platform == "linux":  # macOS does not limit the address space
        bounds[resource.RLIMIT_AS] = limits.memory
        bounds[resource.RLIMIT_SIGPENDING] = MAX_SIGNALS
    for limit, bound in bounds.items():
        resource.setrlimit(limit, (bound, bound))


def instructions(otherwise: int) -> list[tuple[int, int, int, int]]:
    """Return the filter: (operation, jump if true, jump if false, operand) each; a jump skips so many.

    otherwise: the result for calls that are not in the tables.
    """
    code = [
        (LOAD, 0, 0, ARCHITECTURE),
        (IF_EQUAL, 1, 0, AUDIT[platform.machine()]),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, CALL_NUMBER),
        (IF_AT_LEAST, 0, 1, X32_CALLS),
        (RETURN, 0, 0, KILL_PROCESS),
    ]
    for error, rows in ANSWERED.items():
        for number in numbers(rows).values():
            code += [(IF_EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL_WITH | error)]
    for rows in ALLOWED.values():
        for name, number in numbers(rows).items():
            test = [(RETURN, 0, 0, ALLOW)]
            if name in VALUES:
                argument, values = VALUES[name]
                test = [(LOAD, 0, 0, FIRST_ARGUMENT + 8 * argument)]
                for value in values:
                    test += [(IF_EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW)]
                test.append((RETURN, 0, 0, FAIL_WITH | errno.EPERM))
            elif name in WITHOUT:
                argument, bits = WITHOUT[name]
                test = [
                    (LOAD, 0, 0, FIRST_ARGUMENT + 8 * argument),
                    (IF_ANY_BIT, 1, 0, bits),
                    (RETURN, 0, 0, ALLOW),
                    (RETURN, 0, 0, FAIL_WITH | errno.EPERM),
                ]
            code += [(IF_EQUAL, 0, len(test), number), *test]
    return [*code, (RETURN, 0, 0, otherwise)]


def _filter_calls() -> None:
    """Apply the tables from now on, in this process and its children."""
    code = instructions(otherwise=FAIL_WITH | errno.EPERM)
    packed = b"".join(struct.pack("HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(packed)
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))
    # Without new privileges no program, such as sudo, can leave the filter. PR_SET_NO_NEW_PRIVS is 38.
    _call("no_new_privs", "prctl", 38, 1, 0, 0, 0)
    # PR_SET_SECCOMP is 22, SECCOMP_MODE_FILTER is 2.
    _call("filter of system calls", "prctl", 22, 2, program)


if __name__ == "__main__":
    try:
        _main()
    except OSError as error:
        sys.exit(str(error))
