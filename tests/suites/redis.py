"""Public test suites through the Redis gate: that of Redis itself and that of redis-py, against a server directly and
through the gate, each time with fresh processes. Prints what differs and fails on whatever `expected.txt` doesn't name.

`.ci/suites` calls it. It downloads nothing: `.ci/suites` brings the sources.
"""
import argparse
import collections
import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree

RUNNING = set()
HERE = pathlib.Path(__file__).resolve().parent
RUN_SECONDS_MAX = 2400
START_SECONDS_MAX = 20
# More than these are no accident.
AGAIN_MAX = 30
# How a run reaches the server: `token` is through the gate, each connection with a token.
WAYS = ["direct", "gate", "token"]
TOOLS = ["redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb"]

# They need servers of another kind: with modules, in clusters, with TLS.
NOT_OURS = "bloom graph json search timeseries cluster sentinel sentinel_managed_connection ssl".split()
# They connect to ports 6379 and 6380, whoever may listen there.
NOT_ITS_PORT = [
    "tests/test_commands.py::TestRedisCommands::test_psync",
    "tests/test_connection.py::TestConnection::test_retry_connect_on_timeout_error",
    "tests/test_connection.py::test_create_single_connection_client_from_url",
    "tests/test_asyncio/test_connection_pool.py::TestConnectionPool::test_max_connections",
    "tests/test_asyncio/test_connection_pool.py::TestConnectionPool::test_multiple_connections",
    "tests/test_asyncio/test_connection_pool.py::TestConnectionPool::test_reuse_previously_released_connection",
]
PYTEST_INI = """[pytest]
asyncio_mode = auto
timeout = 60
markers =
    redismod: x
    pipeline: x
    onlycluster: x
    onlynoncluster: x
    ssl: x
    asyncio: x
    replica: x
    experimental: x
"""
GATE = """version: 1
store: {{ kind: memory }}
admin: {{ bind: "127.0.0.1:{admin}" }}
listeners:
  - name: suite
    bind: "127.0.0.1:{gate}"
    protocol: redis
    upstream: {{ url: "tcp://127.0.0.1:{server}", response_timeout: 120s, settle_after: 120s }}
    unmatched: {{ reads: pass, writes: pass }}
    rules:
      - {{ name: all, match: {{ keys: "*" }}, resource: "all", token: {{ connection: true }}, missing: pass }}
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gate", required=True, help="the fencegate binary")
    parser.add_argument("--work", required=True, type=pathlib.Path, help="where the sources are and logs go")
    parser.add_argument("suites", nargs="*", default=list(SUITES), metavar="SUITE", help=f"of {', '.join(SUITES)}")
    for wanted in (signal.SIGTERM, signal.SIGINT):
        signal.signal(wanted, end_all)
    args = parser.parse_args()
    # Of one spelling: pytest takes fixtures from conftest.py files by their place.
    args.work = args.work.resolve()
    wrong = [name for name in args.suites if name not in SUITES]
    if wrong:
        parser.error(f"no suite {wrong[0]!r}: there are {', '.join(SUITES)}")
    expected = read_expected(HERE / "expected.txt")
    differing = sum(compare(name, args, expected) for name in args.suites)
    print(f"suites: {differing} unexpected differences")
    return 1 if differing else 0


def compare(name, args, expected):
    """Runs one suite in all its ways; gives how many differences nobody expects."""
    ways = SUITES[name][1]
    results = {}
    # Two at once: a machine has two cores at least.
    for pair in (ways[:2], ways[2:]):
        results |= at_once([(name, way, args, None) for way in pair])
    for way in ways:
        counts = collections.Counter(results[way].values())
        print(f"{name} {way}: {', '.join(f'{count} {word}' for word, count in sorted(counts.items()))}")
    return sum(judge(name, way, results, args, expected) for way in ways[1:])


def at_once(runs):
    results, failures = {}, []

    def one(name, way, args, only):
        try:
            results[way] = run(name, way, args, only)
        except Exception as error:  # told below
            failures.append(f"{name} {way}: {error}")

    threads = [threading.Thread(target=one, args=each) for each in runs]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    if failures:
        sys.exit("suites: " + "; ".join(failures))
    return results


def judge(name, way, results, args, expected):
    """Prints how a way differs from the direct one; gives how many differences stand in no list."""
    direct, through = results["direct"], dict(results[way])
    known = {test: why for (suite, ways, test), why in expected.items() if suite == name and way in ways.split()}
    differing = [test for test in sorted(set(direct) | set(through)) if direct.get(test) != through.get(test)]
    try_again(name, way, [test for test in differing if test not in known], direct, through, args)
    unexpected = 0
    for test in differing:
        before, now, why = direct.get(test, "not run"), through.get(test, "not run"), known.pop(test, None)
        if before != now:
            print(f"  {way}: {test}: {before} directly, {now} through the gate: {why or 'NOT EXPECTED'}")
            unexpected += why is None
    for test in known:
        outcome = f"{direct[test]} either way" if test in direct else "not run"
        print(f"  {way}: {test}: expected to differ, but {outcome}")
    return unexpected + len(known)


def try_again(name, way, tests, direct, through, args):
    """Some tests have time limits of some milliseconds: a difference has to show twice, the second time undisturbed."""
    if not 0 < len(tests) <= AGAIN_MAX:
        return
    only = sorted({plain(test) for test in tests})
    print(f"{name} {way}: {len(only)} once more by themselves", flush=True)
    before = run(name, "direct", args, only, "again-direct")
    now = run(name, way, args, only, f"again-{way}")
    for test in tests:
        # By itself it may lack what others have left for it, and then says nothing.
        if before.get(test) == now.get(test) == "passed":
            direct[test] = through[test] = "passed"


def plain(test):
    """Its name without the number that tells apart those of one name."""
    return re.sub(r" ×\d+$", "", test)


def read_expected(path):
    """Lines `suite | ways | test | why`."""
    expected = {}
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            suite, ways, test, why = (part.strip() for part in line.split(" | ", 3))
            expected[suite, ways, test] = why
    return expected


def run(name, way, args, only=None, label=None):
    """One suite in one way, or only those tests of it, with a server and a gate of its own."""
    folder = args.work / "runs" / f"{name}-{label or way}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as processes:
        server = free_port()
        flags = ["--bind", "127.0.0.1", "--save", "", "--dir", folder]
        flags += ["--enable-debug-command", "yes", "--enable-module-command", "yes"]
        command = ["redis-server", "--port", str(server), *flags]
        others = [processes.enter_context(process(folder, folder / "server.log", command))]
        port = server
        if way != "direct":
            port = free_port()
            config = GATE.format(admin=free_port(), gate=port, server=server)
            (folder / "gate.yaml").write_text(config)
            gate = [args.gate, "serve", "-c", folder / "gate.yaml"]
            others.append(processes.enter_context(process(folder, folder / "gate.log", gate)))
        wait_for(port)
        started = time.monotonic()
        found = SUITES[name][0](folder, port, way, args, only)
        print(f"{name} {label or way}: {time.monotonic() - started:.0f} s, log {folder}/suite.log", flush=True)
        if not found:
            raise RuntimeError(f"no test ran, see {folder}/suite.log")
        if any(other.poll() is not None for other in others):
            raise RuntimeError(f"the server or the gate has ended by itself, see {folder}")
        return found


def redis_suite(folder, port, way, args, only):
    """Redis's own suite against a server that runs already."""
    tree = folder / "tree"
    shutil.copytree(args.work / "redis", tree)
    for tool in TOOLS:
        (tree / "src" / tool).unlink(missing_ok=True)
        (tree / "src" / tool).symlink_to(shutil.which(tool) or f"/usr/bin/{tool}")
    if way == "token":
        client = tree / "tests/support/redis.tcl"
        connected = "    fconfigure $fd -translation binary\n    set id [incr"
        text = client.read_text()
        assert text.count(connected) == 1, "the place where a client connects"
        fence = connected.replace("\n", '\n    puts -nonewline $fd "FENCE 1\\r\\n"; flush $fd; gets $fd\n', 1)
        client.write_text(text.replace(connected, fence))
    # From here on it looks for free ports, for itself.
    command = ["./runtest", "--host", "127.0.0.1", "--port", str(port), "--baseport", str(free_port(30000))]
    # Some of the slow ones want the number of the server's process; without them it takes some minutes.
    command += ["--tags", "-slow", "--durable", "--dont-clean"]
    for test in only or []:
        command += ["--only", test]
    bounded(command, tree, folder / "suite.log")
    return tcl_results((folder / "suite.log").read_text(errors="replace"))


def tcl_results(text):
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    found = {}
    for line in text.splitlines():
        if line.startswith("[exception]"):
            # It ran no further.
            raise RuntimeError(line)
        passed = re.match(r"\[ok\]: (.*) \(\d+ ms\)$", line)
        failed = re.match(r"\[err\]: (.*?) in tests/\S+$", line)
        if passed or failed:
            name = (passed or failed)[1]
            # Some names stand for several tests, of different units.
            number, numbered = 1, name
            while numbered in found:
                number += 1
                numbered = f"{name} ×{number}"
            found[numbered] = "passed" if passed else "failed"
    return found


def python_suite(protocol):
    def suite(folder, port, way, args, only):
        tree = folder / "tree"
        shutil.copytree(args.work / "redis-py", tree)
        # A proxy of its own, at a fixed port.
        delaying = tree / "tests/test_asyncio/test_cwe_404.py"
        delaying.write_text(delaying.read_text().replace("5380", str(free_port())))
        (folder / "pytest.ini").write_text(PYTEST_INI)
        url = f"redis://127.0.0.1:{port}/0"
        command = [args.work / "venv/bin/python", "-m", "pytest", "-c", folder / "pytest.ini", "--rootdir", tree]
        command += ["-p", "no:cacheprovider", "-q", "--tb=native", f"--protocol={protocol}", f"--redis-url={url}"]
        command += ["-m", "not onlycluster and not redismod and not ssl", f"--junit-xml={folder}/results.xml"]
        command += ["-o", "junit_family=xunit1"]
        for name in NOT_OURS:
            command += [f"--ignore-glob=*/test_{name}.py"]
        command += [f"--deselect={test}" for test in NOT_ITS_PORT]
        bounded([*command, *(only or ["tests"])], tree, folder / "suite.log")
        return junit_results(folder / "results.xml")

    return suite


def junit_results(path):
    found = {}
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        # As pytest takes it: the file, the class, the test.
        module = case.get("file").removesuffix(".py").replace("/", ".")
        inside = case.get("classname").removeprefix(module).lstrip(".")
        name = "::".join(part for part in (case.get("file"), inside, case.get("name")) if part)
        outcome = {child.tag for child in case}
        worst = [word for word in ("error", "failure", "skipped") if word in outcome]
        found[name] = worst[0] if worst else "passed"
    return found


def bounded(command, folder, log):
    with process(folder, log, command) as running:
        try:
            running.wait(RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not through in {RUN_SECONDS_MAX} s, see {log}") from None


@contextlib.contextmanager
def process(folder, log, command):
    """A process, which ends with all that it starts itself."""
    with open(log, "wb") as out:
        started = subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,
        )
    RUNNING.add(started)
    try:
        yield started
    finally:
        end(started)
        started.wait()
        RUNNING.discard(started)


def end(started):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)


def end_all(*_signal):
    """Asked to end, it leaves nothing behind; its threads need not hear of it."""
    for started in list(RUNNING):
        end(started)
    os._exit(130)


def free_port(start=None):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Some room above it, where a row of ports is wanted.
    return port if start is None else start + port % 20000


def wait_for(port):
    end = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as probe:
            probe.settimeout(5)
            probe.sendall(b"PING\r\n")
            if probe.recv(7) == b"+PONG\r\n":
                return
        time.sleep(0.05)
    raise RuntimeError(f"nothing answers at port {port}")


SUITES = {
    "redis": (redis_suite, WAYS),
    "redis-py-2": (python_suite(2), WAYS[:2]),
    "redis-py-3": (python_suite(3), WAYS[:2]),
}

if __name__ == "__main__":
    sys.exit(main())
