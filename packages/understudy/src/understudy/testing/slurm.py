"""A SLURM cluster of two virtual hosts on this machine: munged, slurmctld and two slurmd in a
temporary folder.

Needs the programs of Debian's packages slurm-wlm and munge (a slurmd that may run more than once on
a host). It needs no system service, configuration or rights: all processes run as the user of the
tests.
"""

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
HOSTS = ("virtual0", "virtual1")


def missing() -> list[str]:
    """Missing programs."""
    return [name for name in PROGRAMS if _program(name) is None]


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")


class Cluster:
    """A running cluster; `call("sbatch", ...)` uses it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def call(self, program: str, *arguments: object) -> str:
        done = subprocess.run(
            [_program(program) or program, *map(str, arguments)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{program}: {done.stderr}\n{self.logs()}"
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """SLURM's record of a job."""
        fields = self.call("scontrol", "show", "job", number).split()
        return dict(field.split("=", 1) for field in fields if "=" in field)

    def logs(self) -> str:
        return "\n".join(
            f"== {file.name}\n{file.read_text()[-3000:]}"
            for file in sorted(self.folder.glob("*.log"))
        )


def wait_for(condition: Callable[[], object], seconds: float, logs: Callable[[], str]) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds:.0f} s\n{logs()}"
        time.sleep(0.2)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Start everything, wait until both hosts are idle, and end every process afterwards."""
    # the path of a socket must be short, and open to all
    with TemporaryDirectory(prefix="slurm-") as folder:
        Path(folder).chmod(0o755)
        yield from _running(Path(folder))


def _running(folder: Path) -> Iterator[Cluster]:
    user = getpass.getuser()
    port = [_free_port() for _ in range(3)]
    secret = folder / "secret"
    secret.mkdir(mode=0o700)
    for name in ("open", "state", "spool"):
        (folder / name).mkdir()
    key = secret / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    sock = folder / "open" / "munge.socket"
    hosts = [
        f"NodeName={h} NodeHostname=localhost NodeAddr=127.0.0.1 Port={p} CPUs=1"
        for h, p in zip(HOSTS, port[1:])
    ]
    (folder / "slurm.conf").write_text(
        f"""ClusterName=virtual
SlurmctldHost=localhost
SlurmctldPort={port[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={sock},cred_expire=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
ReturnToService=2
KillWait=5
PartitionName=all Nodes={",".join(HOSTS)} Default=YES MaxTime=INFINITE State=UP
"""
        + "\n".join(hosts)
        + "\n"
    )
    made = Cluster(folder)
    started = list[subprocess.Popen[bytes]]()

    def start(name: str, *arguments: str) -> None:
        with (folder / f"{name}-{len(started)}.out.log").open("wb") as log:
            command = [_program(name) or name, *arguments]
            started.append(subprocess.Popen(command, env=made.environment, stdout=log, stderr=log))

    try:
        files = {
            "key-file": key,
            "socket": sock,
            "pid-file": secret / "pid",
            "log-file": secret / "log",
        }
        options = [
            f"--{option}={path}" for option, path in {**files, "seed-file": secret / "seed"}.items()
        ]
        start("munged", "--foreground", *options)
        wait_for(sock.exists, 30, made.logs)
        start("slurmctld", "-D")
        for host in HOSTS:
            start("slurmd", "-D", "-N", host)
        wait_for(lambda: _idle(made), 60, made.logs)
        yield made
    finally:
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _idle(cluster: Cluster) -> bool:
    try:
        return cluster.call("scontrol", "show", "nodes").count("State=IDLE ") == len(HOSTS)
    except AssertionError:
        return False  # the controller is still starting


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
