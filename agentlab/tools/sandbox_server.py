"""Runs inside a sandbox: a warm interpreter that forks for every call, watches it, and leaves nothing of it behind.

The text of this file is given to `python -c` in the sandbox, so it imports the standard library alone. One process,
one thread: it reads a request, runs it in a fork, answers, and ends when its input does.

Linux kills in one blow all that a process may signal (`kill(-1)`), and a fork that is under way then fails. So a
server that is process 1 of its own PID namespace, or that runs its calls as a user of their own, ends any fork bomb
with one call. Where it can do neither it stops its descendants until no new one appears, and then kills them; it is
their reaper (`PR_SET_CHILD_SUBREAPER`), so that nobody leaves its tree.
"""

import ast
import atexit
import builtins
import collections
import contextlib
import ctypes
import datetime
import functools
import heapq
import itertools
import json
import linecache
import math
import os
import random
import re
import resource
import select
import shutil
import signal
import stat
import statistics
import string
import sys
import time
import traceback
import types

WARM = (collections, datetime, functools, heapq, itertools, math, random, re, statistics, string)
"""Modules that calls find imported already."""
TICK_S = 0.05
TAIL_S = 0.2
"""Seconds that are spent on reading what ended processes left in the pipe."""
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 36, 38
NAME = "<code>"
STOPPED_BY_KERNEL = {128 + signal.SIGXCPU: "cpu", 128 + signal.SIGXFSZ: "file"}


def main(options):
    """Answer requests until there are no more; `options` are {"uid", "alone", "roots", "env"}."""
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((PR_SET_DUMPABLE, 0), (PR_SET_CHILD_SUBREAPER, 1), (PR_SET_NO_NEW_PRIVS, 1)):
        libc.prctl(option, value, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    while True:
        request = json.loads(read_exactly(source, int.from_bytes(read_exactly(source, 4), "big")))
        answer = json.dumps(run(request, options, source)).encode()
        write_all(sink, len(answer).to_bytes(4, "big") + answer)


def read_exactly(source, size):
    """So many bytes; the process ends where the input does."""
    parts = []
    while size:
        part = os.read(source, min(size, 1 << 20))
        if not part:
            leave()
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_all(sink, data):
    """Write all of it; the process ends where nobody reads it."""
    try:
        while data:
            data = data[os.write(sink, data) :]
    except BrokenPipeError:
        leave()


def leave():
    """End the server and whatever still runs under it; the host may be gone, so its folder is removed here, too."""
    kill_all(OPTIONS)
    if not OPTIONS["alone"]:
        shutil.rmtree(os.path.dirname(OPTIONS["roots"][0]), ignore_errors=True)  # noqa: PTH120
    os._exit(0)


# -- one call -------------------------------------------------------------------------------------


def run(request, options, source):
    """Run a request in a fork; what it wrote, how it ended, and whether the sandbox is clean again."""
    started = time.monotonic()
    stdin = os.memfd_create("stdin")
    write_all(stdin, request["stdin"].encode("utf-8", "surrogateescape"))
    os.lseek(stdin, 0, os.SEEK_SET)
    out, into = os.pipe()
    if options["uid"] is not None:
        for number in (stdin, into):
            os.fchown(number, options["uid"], options["uid"])
    pid = os.fork()
    if pid == 0:
        become(request, options, stdin, into)
    os.close(stdin)
    os.close(into)
    ended, output = watch(pid, out, request["limits"], options, source, started)
    code = kill_all(options, pid)
    limit = request["limits"]["output_bytes"]
    output += tail(out, limit + 1 - len(output))
    os.close(out)
    if len(output) > limit:
        ended, output = ended or "output", output[:limit]
    clean = clear(options) if request["clear"] else True
    ended = ended or STOPPED_BY_KERNEL.get(code or 0)
    text = output.decode("utf-8", "replace")
    return {"output": text, "code": code, "ended": ended, "clean": clean, "duration_s": time.monotonic() - started}


def watch(pid, out, limits, options, source, started):
    """Read what it writes until it exits or passes a limit: (name of the limit or None, bytes)."""
    exited = os.pidfd_open(pid)
    waiting = [out, exited, source]
    output, deadline, look = bytearray(), started + limits["timeout_s"], started + TICK_S
    before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    try:
        while True:
            now = time.monotonic()
            if now >= deadline:
                return "timeout", output
            if now >= look:
                look = now + TICK_S
                if passed := overuse(limits, options, before):
                    return passed, output
            ready = select.select(waiting, [], [], min(deadline, look) - now)[0]
            if source in ready:  # the host has gone, or has given up
                leave()
            if out in ready:
                data = os.read(out, 1 << 16)
                output += data
                if not data:
                    waiting.remove(out)
                if len(output) > limits["output_bytes"]:
                    return "output", output
            elif exited in ready:
                return None, output
    finally:
        os.close(exited)


def tail(out, size):
    """What is left in the pipe, at most so many bytes."""
    output, deadline = bytearray(), time.monotonic() + TAIL_S
    while len(output) < size and (left := deadline - time.monotonic()) > 0 and select.select([out], [], [], left)[0]:
        data = os.read(out, 1 << 16)
        if not data:
            break
        output += data
    return output


def overuse(limits, options, cpu_before):
    """The limit that all processes of the call together have passed; None if they keep within them."""
    pids = descendants(os.getpid())
    if len(pids) > limits["max_processes"]:
        return "processes"
    cpu, memory = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - cpu_before, 0
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        cpu += (int(fields[11]) + int(fields[12])) / ticks
        memory += int(fields[21]) * page
    if cpu > limits["cpu_s"]:
        return "cpu"
    if memory > 2 * limits["memory_bytes"]:  # forks share pages, which are counted for each of them
        return "memory"
    if options["alone"]:
        used = [os.statvfs(root) for root in options["roots"]]
        return "files" if sum(f.f_files - f.f_ffree for f in used) > limits["max_files"] else None
    return None


def descendants(pid):
    """The processes below this one, zombies included."""
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        try:
            threads = os.listdir(f"/proc/{parent}/task")  # noqa: PTH208
            for thread in threads:
                with open(f"/proc/{parent}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                    children = [int(child) for child in file.read().split()]
                found += children
                waiting += children
        except OSError:
            continue
    return found


def kill_all(options, pid=None):
    """Leave no process of a call alive and no zombie; the exit status of `pid`, as a shell shows it."""
    if options["alone"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    elif options["uid"] is not None:
        killer = os.fork()
        if killer == 0:
            try:
                set_user(options["uid"])
                os.kill(-1, signal.SIGKILL)
            finally:
                os._exit(0)
        os.waitpid(killer, 0)
    else:
        stopped = set()
        while new := set(descendants(os.getpid())) - stopped:
            signal_each(new, signal.SIGSTOP)
            stopped |= new
        signal_each(stopped, signal.SIGKILL)
    code = None
    while True:
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return code
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code


def signal_each(pids, number):
    """Send a signal to processes, of which some may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def clear(options):
    """Empty the folders that calls may write to; False if something resists."""
    if not any(os.listdir(root) for root in options["roots"]):  # noqa: PTH208
        return True
    pid = os.fork()
    if pid == 0:
        try:
            set_user(options["uid"])
            for root in options["roots"]:
                for entry in os.scandir(root):
                    remove(entry)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return not any(os.listdir(root) for root in options["roots"])  # noqa: PTH208


def remove(entry):
    """Remove a file or a folder, also one that its owner may not enter."""
    if not entry.is_dir(follow_symlinks=False):
        os.unlink(entry.path)  # noqa: PTH108
        return
    os.chmod(entry.path, stat.S_IRWXU)  # noqa: PTH101
    for folder, names, _ in os.walk(entry.path):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118
            if not os.path.islink(path):  # noqa: PTH114
                os.chmod(path, stat.S_IRWXU)  # noqa: PTH101
    shutil.rmtree(entry.path, ignore_errors=True)


# -- in the fork ----------------------------------------------------------------------------------


def become(request, options, stdin, into):
    """Turn this fork into the call; never returns."""
    status = 70
    try:
        os.setsid()
        for number, target in ((stdin, 0), (into, 1), (into, 2)):
            os.dup2(number, target)
        os.closerange(3, 1024)
        set_user(options["uid"])
        set_limits(request["limits"], options)
        os.chdir(options["roots"][0])
        os.environ.clear()
        os.environ.update(options["env"])
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if request["language"] == "bash":
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.execv("/bin/bash", ["bash", "-c", request["text"]])
        status = python(request["text"], request["show_last"])
    except BaseException:  # whatever it is, it must not go on as a second server
        with contextlib.suppress(BaseException):
            os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def set_user(uid):
    """Become this user for good, and nobody else's group; None stays who it is."""
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)


def set_limits(limits, options):
    """Limits that the kernel holds for each process of the call."""
    cpu = math.ceil(limits["cpu_s"])
    pairs = {
        resource.RLIMIT_CPU: (cpu, cpu + 1),
        resource.RLIMIT_AS: (limits["memory_bytes"],) * 2,
        resource.RLIMIT_FSIZE: (limits["file_bytes"],) * 2,
        resource.RLIMIT_NPROC: (limits["max_processes"] + others(options),) * 2,
        resource.RLIMIT_NOFILE: (256, 256),
        resource.RLIMIT_CORE: (0, 0),
    }
    for number, (soft, hard) in pairs.items():
        most = resource.getrlimit(number)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(number, (soft, hard))


def others(options):
    """Threads of the same user outside the sandbox, which the kernel counts against the same limit."""
    if options["uid"] is not None:
        return 0
    if options["alone"]:
        return 1  # the server
    count, mine = 0, os.getuid()
    for name in os.listdir("/proc"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == mine:  # noqa: PTH116
                count += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208
    return count


def python(source, show_last):
    """Run a program as `__main__`; the value of a last line that is an expression is shown if wanted."""
    linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
    sys.argv = [NAME]
    sys.stdin, sys.stdout = open(0), open(1, "w", buffering=1, errors="replace")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="replace")  # noqa: SIM115
    builtins.exit = builtins.quit = sys.exit
    sys.path[:0] = [os.getcwd()]  # noqa: PTH109
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    status = 1
    try:
        tree = ast.parse(source, NAME)
        last = tree.body.pop() if show_last and tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, NAME, "exec"), module.__dict__)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), NAME, "eval"), module.__dict__)
            if value is not None:
                sys.stdout.write(repr(value) + "\n")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            sys.stderr.write(f"{end.code}\n")
    except BaseException as error:  # as the interpreter shows it
        show(error)
    finish()
    return status & 255


def show(error):
    """Write a traceback without the frames of this file."""
    frames = traceback.TracebackException.from_exception(error, limit=50)
    frames.stack = traceback.StackSummary.from_list([frame for frame in frames.stack if frame.filename != "<string>"])
    sys.stderr.write("".join(frames.format()))


def finish():
    """Wait for threads, run what was to run at the end, and write what is still held."""
    if threading := sys.modules.get("threading"):
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a stream that the program has closed
            stream.flush()


if __name__ == "__main__":
    OPTIONS = json.loads(sys.argv[1])
    main(OPTIONS)
