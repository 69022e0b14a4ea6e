"""Two hosts on this machine: a network and a UTS namespace each, joined by a pair of virtual Ethernet devices, and Slurm on them (one
controller, a slurmd on each). With `pids` each has processes of its own, too. Needs root, iproute2, and for Slurm the Debian packages slurmctld, slurmd, slurm-client and munge.

Linux has no namespace for CLOCK_REALTIME (time_namespaces(7)): clocks that differ are planted in the recordings.
"""

import os
import secrets
import shutil
import subprocess
import tempfile
import time

from targets import Failed

NAMES = ["host-a", "host-b"]
ADDRESSES = ["10.77.0.1", "10.77.0.2"]
DEVICE = "eth0"
TOOLS = ["ip", "nsenter", "unshare"]
SLURM_TOOLS = ["slurmctld", "slurmd", "srun", "scontrol", "munged"]
CONFIGURATION = """ClusterName=torchspy
SlurmctldHost=host-a(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SchedulerType=sched/backfill
SelectType=select/linear
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=host-a NodeAddr=10.77.0.1 NodeHostname=host-a CPUs={cpus} State=UNKNOWN
NodeName=host-b NodeAddr=10.77.0.2 NodeHostname=host-b CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE
"""


def missing(tools):
    """What stands in the way of hosts, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in tools if shutil.which(tool) is None]
    return f"no {', '.join(absent)}" if absent else None


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {done.stderr}")


def child_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        return int(file.read().split()[0])


class Hosts:
    """The two hosts, while it is entered. Each is held open by a process that sleeps in its namespaces."""

    def __init__(self, slurm=False, pids=False):
        self.slurm, self.pids = slurm, pids
        self.holders, self.inner = [], []
        self.daemons = []

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="torchspy-hosts-")
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in [*self.daemons, *self.holders]:
            process.terminate()
        for process in [*self.daemons, *self.holders]:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self):
        for name in NAMES:
            # It says when its namespaces are made.
            script = f"hostname {name} && ip link set lo up && echo ready && exec sleep infinity"
            own = ["--pid", "--fork", "--mount-proc", "--kill-child"] if self.pids else []
            holder = subprocess.Popen(["unshare", "--net", "--uts", *own, "sh", "-c", script], stdout=subprocess.PIPE, text=True)
            self.holders.append(holder)
            if holder.stdout.readline() != "ready\n":
                raise Failed("namespaces of network and host name cannot be made")
            self.inner.append(child_of(holder.pid) if self.pids else holder.pid)
        # By the pids of this machine, which the hosts need not see.
        add = ["ip", "link", "add", DEVICE, "netns", str(self.inner[0]), "type", "veth"]
        run([*add, "peer", "name", DEVICE, "netns", str(self.inner[1])])
        for host, address in enumerate(ADDRESSES):
            self.check(host, ["ip", "address", "add", f"{address}/24", "dev", DEVICE])
            self.check(host, ["ip", "link", "set", DEVICE, "up"])
        if self.slurm:
            self.start_slurm()

    def on(self, host, command):
        """The command, to run on that host."""
        own = ["--pid", "--mount"] if self.pids else []
        return ["nsenter", "--target", str(self.inner[host]), "--net", "--uts", *own, *command]

    def check(self, host, command):
        run(self.on(host, command))

    def environment(self):
        """Variables of a job: where Gloo listens, where rank 0 is, and Slurm's configuration."""
        job = {"GLOO_SOCKET_IFNAME": DEVICE, "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29517"}
        return {**os.environ, **job, "SLURM_CONF": os.path.join(self.folder, "slurm.conf")}

    def start_slurm(self):
        folder = self.folder
        os.makedirs(os.path.join(folder, "state"))
        with open(os.path.join(folder, "slurm.conf"), "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(folder=folder, cpus=8))
        key = os.path.join(folder, "munge.key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(secrets.token_bytes(128))
        files = [f"--{name}-file={folder}/munged.{name}" for name in ("pid", "log", "seed")]
        self.daemon(None, ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge", *files])
        self.daemon(0, ["slurmctld", "-D"])
        for host, name in enumerate(NAMES):
            self.daemon(host, ["slurmd", "-D", "-N", name])
        self.wait_for_nodes()

    def daemon(self, host, command):
        with open(os.path.join(self.folder, f"{command[0]}-{host}.out"), "w", encoding="utf-8") as log:
            command = command if host is None else self.on(host, command)
            self.daemons.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.environment()))

    def wait_for_nodes(self):
        """Until the controller has heard of both nodes."""
        end = time.monotonic() + 120
        states = ""
        while time.monotonic() < end:
            show = self.on(0, ["sinfo", "--noheader", "--Node", "--format", "%N %T"])
            states = subprocess.run(show, capture_output=True, text=True, env=self.environment(), check=False).stdout
            if states.split() == [word for name in NAMES for word in (name, "idle")]:
                return
            time.sleep(0.2)
        raise Failed(f"Slurm's nodes are not ready: {states}; its logs are in {self.folder}")
