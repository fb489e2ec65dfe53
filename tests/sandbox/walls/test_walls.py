"""What a walled process cannot do: network, files, other processes, limits. On the real kernel."""

import fcntl
import os
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import SandboxFault
from sandbox.machine.probe import ask
from sandbox.walls.enclose import Enclosure, Layer, enclose
from sandbox.walls.folders import prepare_scratch
from sandbox.walls.kernel import prctl, syscall
from sandbox.walls.seccomp import ARCHITECTURES, DENIED, F_SETSIG

SLOT_UID = 61_000 + os.getpid() % 2_000
"""Unlike any other test run's on this host: limits count, and kill_tree sweeps, by uid."""
NOBODY = 63_000 + os.getpid() % 2_000
ROOT = os.geteuid() == 0
USERS = ["slot", "nobody"] if ROOT else ["self"]
Question = Callable[[], object]
Asker = Callable[..., Any]


def enclosure_of(scratch: Path, uid: int | None, **changes: object) -> Enclosure:
    values: dict[str, object] = dict(
        scratch=scratch,
        readable=(),
        uid=uid,
        devices=(),
        cpu_seconds=30,
        file_bytes=1 << 28,
        processes=64,
        address_space_bytes=None,
        parent_pid=os.getpid(),
    )
    return Enclosure(**(values | changes))  # type: ignore[arg-type]


def open_to_others(folder: Path) -> None:
    """Let nobody reach pytest's folder, which is root's alone."""
    for level in (folder, *folder.parents):
        if level == Path(tempfile.gettempdir()):
            return
        level.chmod(0o755)


@pytest.fixture(params=USERS)
def inside(request: pytest.FixtureRequest, tmp_path: Path) -> Asker:
    """Asks a question behind walls: as root's slot uid, and as an ordinary user."""
    uid = SLOT_UID if request.param == "slot" else None
    user = NOBODY if request.param == "nobody" else None
    if user is not None:
        open_to_others(tmp_path)
    scratch = prepare_scratch(tmp_path / "scratch", uid if uid is not None else user)

    def run(
        question: Question, *, without: frozenset[Layer] = frozenset(), **changes: object
    ) -> Any:
        enclosure = enclosure_of(scratch, uid, **changes)
        return ask(enclosure, lambda walls: question(), without=without, user=user)

    return run


def refused(act: Callable[[], object]) -> str | None:
    """The name of the error `act` raises; None where it succeeds."""
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return None


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK])
def test_internet_and_netlink_sockets_are_refused(inside: Asker, family: int, kind: int) -> None:
    assert inside(lambda: refused(lambda: socket.socket(family, kind))) == "PermissionError"


def test_devices_that_were_not_given_are_refused(inside: Asker) -> None:
    """Of GPUs' files a worker is given its own: here two other devices stand for them."""
    devices = Path("/dev/ptmx"), Path("/dev/tty")

    def attempts() -> list[bool]:
        return [refused(path.open) == "PermissionError" for path in devices]

    for given in ((), devices[:1], devices[1:], devices):
        assert inside(attempts, devices=given) == [path not in given for path in devices]


def test_without_seccomp_the_network_still_leads_nowhere(inside: Asker) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def attempts() -> list[str | None]:
        datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        return [
            refused(lambda: socket.socket().connect(("127.0.0.1", port))),
            refused(lambda: datagram.sendto(b"x", ("127.0.0.1", port))),
        ]

    with listener:
        for layers in ({Layer.SECCOMP}, {Layer.SECCOMP, Layer.LANDLOCK}):
            assert None not in inside(attempts, without=frozenset(layers))


def test_without_namespaces_tcp_is_refused_twice(inside: Asker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        for layer in (Layer.SECCOMP, Layer.LANDLOCK):
            error = inside(
                lambda: refused(lambda: socket.socket().connect(address)),
                without=frozenset({Layer.NETWORK, layer}),
            )
            assert error == "PermissionError"


def test_unix_sockets_reach_nobody_outside(inside: Asker, tmp_path: Path) -> None:
    path = str(tmp_path / "supervisor")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        os.chmod(path, 0o777)
        listener.listen()
        assert inside(lambda: refused(lambda: socket.socket(socket.AF_UNIX).connect(path)))
    assert inside(lambda: refused(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)))
    assert inside(lambda: refused(socket.socketpair)) is None


def test_writing_works_in_the_scratch_and_its_tmp_only(inside: Asker, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"

    def attempts() -> list[str | None]:
        places = [scratch / "a", scratch / "tmp" / "b", tmp_path / "c", Path("/var/tmp/warpsmith")]
        return [refused(lambda p=p: p.write_text("x")) for p in places]  # type: ignore[misc]

    works, works_too, _, elsewhere = inside(attempts)
    assert (works, works_too) == (None, None)
    assert elsewhere in ("PermissionError", "OSError")  # by Landlock, or a mount that is read-only
    assert not (tmp_path / "c").exists()  # at most it went to the private /tmp


def test_tmp_and_shm_are_private(inside: Asker, tmp_path: Path) -> None:
    name = f"warpsmith-{os.getpid()}"

    def write() -> list[bool]:
        for folder in ("/tmp", "/dev/shm"):
            Path(folder, name).write_text("x")
        return [Path(folder, name).exists() for folder in ("/tmp", "/dev/shm")]

    assert inside(write) == [True, True]
    assert not Path("/tmp", name).exists()
    assert not Path("/dev/shm", name).exists()
    assert (tmp_path / "scratch/tmp" / name).exists()


def test_without_namespaces_tmp_and_shm_are_closed(inside: Asker) -> None:
    def attempts() -> list[str | None]:
        places = [Path("/tmp/warpsmith-x"), Path("/dev/shm/warpsmith-x")]
        return [refused(lambda p=p: p.write_text("x")) for p in places]  # type: ignore[misc]

    refusals = inside(attempts, without=frozenset({Layer.NETWORK, Layer.FOLDERS}))
    assert refusals == ["PermissionError", "PermissionError"]


@pytest.mark.parametrize(
    "without", [frozenset(), frozenset({Layer.LANDLOCK})], ids=["whole", "no landlock"]
)
def test_what_stays_visible_below_tmp_is_read_only(
    inside: Asker, tmp_path: Path, without: frozenset[Layer]
) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    shown.chmod(0o777)
    (shown / "artefact").write_text("x")

    def attempts() -> tuple[str, str | None]:
        return (shown / "artefact").read_text(), refused(lambda: (shown / "new").write_text("x"))

    content, error = inside(attempts, readable=(shown,), without=without)
    assert content == "x"
    assert error is not None


def test_a_private_folder_cannot_be_named_readable(inside: Asker) -> None:
    with pytest.raises(SandboxFault, match="/tmp is private"):
        inside(lambda: None, readable=(Path("/tmp"),))


@pytest.mark.skipif(not ROOT, reason="writes into root's home")
@pytest.mark.parametrize("layer", [Layer.LANDLOCK, Layer.SECCOMP, Layer.FOLDERS, Layer.OWN_UID])
def test_the_supervisors_files_cannot_be_read(inside: Asker, layer: Layer) -> None:
    home = Path.home()
    secret = home / f".warpsmith-test-{os.getpid()}"
    secret.write_text("secret")
    secret.chmod(0o644)
    try:
        if layer is not Layer.LANDLOCK:
            left_out = frozenset() if layer is Layer.OWN_UID else frozenset({layer})
            assert inside(lambda: refused(secret.read_text), without=left_out) == "PermissionError"
        assert inside(lambda: refused(lambda: os.listdir(home))) == "PermissionError"
    finally:
        secret.unlink()


@pytest.mark.parametrize("name", ["environ", "mem", "maps", "fd/0", "cwd", "root"])
@pytest.mark.parametrize("missing", [None, Layer.SECCOMP])
def test_the_supervisors_proc_entries_are_closed(
    inside: Asker, name: str, missing: Layer | None
) -> None:
    path = f"/proc/{os.getpid()}/{name}"
    without = frozenset() if missing is None else frozenset({missing})

    def attempt() -> object:
        return os.readlink(path) if name in ("cwd", "root") else Path(path).read_bytes()

    assert inside(lambda: refused(attempt), without=without) == "PermissionError"


def test_shadow_passwords_cannot_be_read(inside: Asker) -> None:
    assert inside(lambda: refused(Path("/etc/shadow").read_text)) == "PermissionError"


def test_signals_to_the_supervisor_are_refused(inside: Asker) -> None:
    supervisor = os.getpid()
    assert inside(lambda: refused(lambda: os.kill(supervisor, 0))) == "PermissionError"


def number_of(name: str) -> int:
    return DENIED[name][ARCHITECTURES[os.uname().machine][0]]


@pytest.mark.parametrize(
    "name",
    [
        *("ptrace", "process_vm_readv", "unshare", "mount", "bpf", "io_uring_setup", "keyctl"),
        *("perf_event_open", "open_by_handle_at", "sched_setaffinity", "pidfd_getfd", "shmget"),
        *("timer_create", "timerfd_create", "io_setup"),
    ],
)
def test_dangerous_system_calls_are_refused(inside: Asker, name: str) -> None:
    number = number_of(name)
    assert inside(lambda: refused(lambda: syscall(number, 0, 0, 0, 0, 0))) == "PermissionError"


def test_no_event_sends_a_signal_of_ones_choice(inside: Asker) -> None:
    def attempt() -> object:
        return fcntl.fcntl(0, F_SETSIG, signal.SIGCONT)

    assert inside(lambda: refused(attempt)) == "PermissionError"
    assert inside(lambda: refused(lambda: fcntl.fcntl(0, fcntl.F_GETFL))) is None


def test_the_tree_cannot_leave_its_process_group(inside: Asker) -> None:
    def attempts() -> list[object]:
        os.setpgid(0, 0)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)  # pretends to work: ninja needs that
            os._exit(os.getpgrp() == os.getpid())
        return [os.waitpid(child, 0)[1], refused(os.setsid), os.getpgrp() == os.getpid()]

    assert inside(attempts) == [0, "PermissionError", True]


def test_the_parent_death_signal_cannot_be_cleared(inside: Asker) -> None:
    assert inside(lambda: refused(lambda: prctl(1, 0))) == "PermissionError"


def test_limits_of_other_processes_cannot_be_changed(inside: Asker) -> None:
    def attempt() -> object:
        return resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))

    assert inside(lambda: refused(attempt)) == "PermissionError"
    assert inside(lambda: refused(lambda: resource.prlimit(0, resource.RLIMIT_CPU))) is None


def test_no_capability_but_reading_is_left(inside: Asker) -> None:
    def sets() -> list[int]:
        lines = Path("/proc/self/status").read_text().splitlines()
        return [int(line.split()[1], 16) for line in lines if line.startswith(("CapPrm", "CapEff"))]

    for capabilities in inside(sets):
        assert capabilities in (0, 1 << 2)


@pytest.mark.parametrize("layer", [None, Layer.NETWORK])
def test_a_fork_bomb_hits_the_limit(inside: Asker, layer: Layer | None) -> None:
    without = frozenset() if layer is None else frozenset({layer})

    def bomb() -> int:
        children = []
        while True:
            try:
                child = os.fork()
            except BlockingIOError:
                break
            if child == 0:
                time.sleep(30)
                os._exit(0)
            children.append(child)
        for child in children:  # a zombie still counts against the uid's next process
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return len(children)

    # A little over: what this uid ran before may be counted, then end.
    assert 4 <= inside(bomb, processes=12, without=without) <= 16


def test_files_stop_at_the_size_limit(inside: Asker, tmp_path: Path) -> None:
    def write() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        path = tmp_path / "scratch" / "big"
        assert refused(lambda: path.write_bytes(bytes(1 << 17))) == "OSError"
        return path.stat().st_size

    assert inside(write, file_bytes=1 << 16) == 1 << 16


def test_processor_time_is_limited(inside: Asker) -> None:
    def spin() -> int:
        child = os.fork()
        if child == 0:
            while True:
                pass
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert inside(spin, cpu_seconds=1) == -signal.SIGXCPU


def test_a_worker_dies_with_its_parent(tmp_path: Path) -> None:
    uid = SLOT_UID if ROOT else None
    scratch = prepare_scratch(tmp_path / "scratch", uid)
    reader, writer = os.pipe()
    zygote = os.fork()
    if zygote == 0:
        parent = os.getpid()
        worker = os.fork()
        if worker == 0:
            enclose(enclosure_of(scratch, uid, parent_pid=parent))
            os.write(writer, b"%d" % os.getpid())
            time.sleep(30)
            os._exit(0)
        time.sleep(30)
    os.close(writer)
    assert os.read(reader, 16)
    os.kill(zygote, signal.SIGKILL)
    os.waitpid(zygote, 0)
    began = time.monotonic()
    assert os.read(reader, 16) == b""  # the worker's end of the pipe closed: it is gone
    assert time.monotonic() - began < 20, "it did not end of itself"


def test_an_orphan_is_refused(tmp_path: Path) -> None:
    scratch = prepare_scratch(tmp_path / "scratch", SLOT_UID if ROOT else None)
    child = os.fork()
    if child == 0:
        try:
            enclose(enclosure_of(scratch, SLOT_UID if ROOT else None, parent_pid=1))
        except SandboxFault:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_shell_and_compilers_work_inside(inside: Asker, tmp_path: Path) -> None:
    def build() -> list[str]:
        source = tmp_path / "scratch" / "hello.cpp"
        source.write_text('#include <cstdio>\nint main() { std::puts("hello"); }\n')
        run = ["g++", "-o", "hello", "hello.cpp"]
        subprocess.run(run, check=True, capture_output=True)
        shell = subprocess.run(["/bin/sh", "-c", "./hello | tr a-z A-Z"], capture_output=True)
        return [shell.stdout.decode(), shell.stderr.decode()]

    assert inside(build) == ["HELLO\n", ""]


def test_standard_devices_and_random_numbers_work_inside(inside: Asker) -> None:
    def use() -> int:
        Path("/dev/null").write_text("x")
        return len(os.urandom(8)) + len(Path("/dev/urandom").open("rb").read(8))

    assert inside(use) == 16


def test_threads_can_be_named_inside(inside: Asker) -> None:
    def name() -> str:
        path = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        path.write_text("named")  # as pthread_setname_np does for another thread
        return path.read_text()

    assert inside(name) == "named\n"
