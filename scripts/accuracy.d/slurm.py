"""Part slurm: a job of Slurm as its user has it: four Gloo ranks that srun started on two hosts (hosts.py), each with processes of its own.
`dump --job` by the job's id and by a folder of recordings finds all of them by Slurm's own squeue, scontrol and srun; `watch --job` finds those
of its host, and an agent on each host counts their steps under the job's id.
"""

import json
import os
import subprocess
import time

import profilers
from hosts import NAMES, SLURM_TOOLS, TOOLS, Hosts, missing
from targets import PROGRAMS, Failed, torch_python

RANKS = 4
SECONDS = "600"
PATIENCE_S = 120
SCRAPE = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"


def until(what, found):
    """What `found` gives, once it gives anything."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(1)
    raise Failed(f"{what}: not within {PATIENCE_S} s")


def ranks_of(answer):
    """Ranks by host, of the JSON of `dump --job`."""
    found = {name: set() for name in NAMES}
    for group in answer["ranks"]:
        for rank in group["ranks"]:
            found[rank["host"]].add(rank["rank"])
    return found


def series(text, name):
    """The values of a name's series, by its labels."""
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(name + "{")]
    return {labels: float(value) for labels, value in lines}


def measure(table, folder, quick):
    del quick
    table.heading("a job of Slurm: four ranks that srun started on two hosts")
    why_not = missing([*TOOLS, *SLURM_TOOLS])
    if why_not:
        table.skip("a job of Slurm", why_not)
        return
    torchspy = profilers.torchspy_path()
    recordings = os.path.join(folder, "recordings")
    with Hosts(slurm=True, pids=True) as hosts:

        def run(host, *command):
            done = subprocess.run(hosts.on(host, list(command)), capture_output=True, text=True, env=hosts.environment(), timeout=300, check=False)
            if done.returncode != 0:
                raise Failed(f"{command}: {done.stderr}")
            return done.stdout

        record = [torchspy, "record", "-o", os.path.join(recordings, "{job}", "{host}-{rank}.tspy"), "--", torch_python()]
        srun = ["srun", "--nodes", "2", "--ntasks", str(RANKS), "--ntasks-per-node", str(RANKS // 2)]
        command = [*srun, *record, os.path.join(PROGRAMS, "ddp_gloo.py"), "--seconds", SECONDS]
        agents, asked = [], {}
        with open(os.path.join(folder, "srun.log"), "w+", encoding="utf-8") as log:
            job = subprocess.Popen(hosts.on(0, command), stdout=log, stderr=log, env=hosts.environment())
            try:
                for host in range(len(NAMES)):
                    agent = [torchspy, "agent", "--listen", "127.0.0.1:0", "--every", "5s", "--ring", os.path.join(folder, f"ring-{host}")]
                    agents.append(subprocess.Popen(hosts.on(host, agent), stdout=subprocess.PIPE, stderr=log, text=True))
                number = until("the job's id", lambda: run(0, "squeue", "--noheader", "--format", "%i").strip())

                def all_train():
                    log.seek(0)
                    return log.read().count("ready ") == RANKS

                until("all ranks train", all_train)
                for name in [number, os.path.join(recordings, number)]:
                    answer = json.loads(run(0, torchspy, "dump", "--job", name, "--json", "--timeout", "60s", "--program", torchspy))
                    asked[name] = ranks_of(answer)
                watched = []
                for host in range(len(NAMES)):
                    watch = hosts.on(host, [torchspy, "watch", "--job", number, "--duration", "5s"])
                    done = subprocess.run(watch, capture_output=True, text=True, env=hosts.environment(), timeout=120, check=False)
                    watched.append((done.returncode, done.stderr))
                counted = []
                for host, agent in enumerate(agents):
                    address = agent.stdout.readline().strip()

                    def steps(host=host, address=address):
                        found = series(run(host, torch_python(), "-c", SCRAPE, address), "torchspy_steps_total")
                        own = {labels: value for labels, value in found.items() if f'job="{number}"' in labels and value > 0}
                        return own if len(own) >= RANKS // 2 else None

                    counted.append(until("the agent counts steps of its ranks", steps))
                is_running = job.poll() is None
            finally:
                for agent in agents:
                    agent.terminate()
                    agent.wait(60)
                job.terminate()
                job.wait(60)
    expected = {NAMES[host]: set(range(host * RANKS // 2, (host + 1) * RANKS // 2)) for host in range(len(NAMES))}
    right = sum(ranks == expected for ranks in asked.values())
    table.at_least("all ranks found by their id, and by their folder", right, 2, "{:.0f}")
    print(f"    {asked}", flush=True)
    watching = sum(status == 0 and f"watching {RANKS // 2} trainers" in said for status, said in watched)
    table.at_least("watch --job: hosts whose trainers are watched", watching, len(NAMES), "{:.0f}")
    print(f"    {watched}", flush=True)
    table.at_least("agents that count steps of their two ranks", len(counted), len(NAMES), "{:.0f}")
    print(f"    {counted}", flush=True)
    table.at_least("the job runs on", int(is_running), 1, "{:.0f}")
