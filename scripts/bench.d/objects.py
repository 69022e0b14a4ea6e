"""Recordings that go to object storage: torchspy is killed at random, and the store fails at random. Nothing may be lost.

A store that is an S3 server of this machine (tests/programs/s3_server.py). A recording that was not killed must be there
as a whole; of a killed one the spool must have all that was written, and `torchspy send` must bring all of it.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import time
import urllib.request

import profilers
from targets import HERE, Failed, program

FAULTS = "error=0.1&lost=0.1&cut=0.1&short=0.1&slow=0.1"
# Bytes of a recording that is sent in several parts.
LARGE = 17_000_001


class Store:
    """The server, and the folders of a user who sends to it."""

    def __init__(self, python, folder):
        self.process = subprocess.Popen(
            [python, program("s3_server.py"), "runs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.address = self.process.stdout.readline().strip()
        self.spool = os.path.join(folder, "state", "torchspy", "spool")
        os.makedirs(self.spool)
        self.variables = os.environ | {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "XDG_STATE_HOME": os.path.join(folder, "state"),
            "XDG_CACHE_HOME": os.path.join(folder, "cache"),
        }

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def start(self, *arguments):
        return subprocess.Popen(
            [profilers.torchspy_path(), *arguments], env=self.variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments):
        process = self.start(*arguments)
        return process.communicate()[1], process.returncode

    def fail(self, shares):
        urllib.request.urlopen(urllib.request.Request(f"{self.address}/_faults?{shares}", method="POST")).close()

    def state(self):
        with urllib.request.urlopen(f"{self.address}/_state") as answer:
            return json.load(answer)

    def spooled(self):
        """Recordings in the spool: length and hash, by the addresses that they go to."""
        found = {}
        for name in os.listdir(self.spool):
            path = os.path.join(self.spool, name)
            if not name.endswith(".send"):
                continue
            recording = path[: -len("send")] + "tspy"
            if os.path.exists(recording):
                with open(path, encoding="utf-8") as journal, open(recording, "rb") as file:
                    lines = [line for line in journal if line.endswith("}\n")]
                    data = file.read()
                found[json.loads(lines[-1])["to"]] = [len(data), hashlib.sha256(data).hexdigest()]
        return found

    def leave(self, name, data):
        with open(os.path.join(self.spool, f"{name}.tspy"), "wb") as file:
            file.write(data)
        line = {"to": f"s3://runs/left/{name}.tspy", "force": False, "placed": None, "upload": None}
        with open(os.path.join(self.spool, f"{name}.send"), "w", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def killed_recordings(store, count, draw):
    """Returns what the spool had after each kill, and the addresses of recordings that had ended before theirs."""
    left, ended = {}, []
    for number in range(count):
        to = f"s3://runs/killed/{number}.tspy"
        recorder = store.start("record", "-o", to, "--", sys.executable, "-c", "import time\ntime.sleep(1)")
        time.sleep(draw.uniform(0.0, 2.5))
        recorder.kill()
        recorder.communicate()
        left |= {address: facts for address, facts in store.spooled().items() if address == to}
        if recorder.returncode == 0:
            ended.append(to)
    return left, ended


def killed_senders(store, count, draw):
    """`send` is killed while it sends a recording in parts. Returns the recordings, and how often that was before its end."""
    left, before_end = {}, 0
    for number in range(count):
        data = draw.randbytes(LARGE)
        store.leave(number, data)
        left[f"s3://runs/left/{number}.tspy"] = [len(data), hashlib.sha256(data).hexdigest()]
        sender = store.start("send")
        time.sleep(draw.uniform(0.0, 3.0))
        sender.kill()
        sender.communicate()
        before_end += sender.returncode != 0
    return left, before_end


def wrong(store, expected):
    """Addresses whose objects are not what was written."""
    objects = store.state()["objects"]
    return [address for address, facts in expected.items() if objects.get(address.removeprefix("s3://")) != facts]


def measure(table, folder, quick):
    table.heading("recordings in object storage: an S3 server that fails, and a torchspy that is killed (seeds 1 and 7)")
    made = subprocess.run([os.path.join(HERE, "..", "torch-env"), "objects"], stdout=subprocess.PIPE, text=True)
    missing = "no S3 server (scripts/torch-env objects)" if made.returncode else profilers.torchspy_missing()
    if missing:
        table.skip("recordings in object storage", missing)
        return
    draw = random.Random(1)
    kills, sends = (5, 3) if quick else (100, 20)
    with Store(made.stdout.strip(), folder) as store:
        store.fail(FAULTS)
        left, ended = killed_recordings(store, kills, draw)
        killed = {address: facts for address, facts in left.items() if facts[0]}
        large, before_end = killed_senders(store, sends, draw)
        said, status = store.run("send")
        rest = store.spooled()
        state = store.state()
        # A bound on chance: a kill at any time of 2.5 s leaves one in about half of the runs. Where
        # all had ended, nothing was tried.
        table.at_least("kill -9 of record: recordings that were under way", len(killed), kills // 5, "{:.0f}")
        table.stated("kill -9 of record", f"{kills}: {len(killed)} left one, {len(ended)} had ended, others no byte")
        table.at_most("    of those, not all of what was written is there", len(wrong(store, killed)), 0, "{:.0f}")
        unread = sum(store.run("inspect", address)[1] != 0 for address in ended)
        table.at_most("    ended, and not there or not readable", unread, 0, "{:.0f}")
        table.at_least("kill -9 of send: before its end", before_end, sends // 5, "{:.0f}")
        table.stated("kill -9 of send, a recording of 17 MB each", f"{sends}: {before_end} before its end")
        table.at_most("    of those, not as it was written", len(wrong(store, large)), 0, "{:.0f}")
        table.at_most("    left in the spool after one more send", len(rest), 0, "{:.0f}")
        table.at_most("    uploads with parts that nobody ends", state["uploads"], 0, "{:.0f}")
        if status:
            raise Failed(f"send ended with {status}: {said}")
        faults = {kind: state["requests"].get(kind, 0) for kind in ["error", "lost", "cut", "short", "slow", "none"]}
        table.stated("requests by what happened to them", ", ".join(f"{number} {kind}" for kind, number in faults.items()))
        if not quick:
            outage(table, store)


def outage(table, store):
    """The store is gone at the end of a recording."""
    store.fail("outage=1")
    started = time.monotonic()
    said, _ = store.run("record", "-o", "s3://runs/outage.tspy", "--", sys.executable, "-c", "import time\ntime.sleep(3)")
    waited = time.monotonic() - started - 3
    kept = store.spooled()
    if list(kept) != ["s3://runs/outage.tspy"] or "was not sent" not in said:
        raise Failed(f"an outage: {kept} in the spool, and it said {said}")
    table.stated("an outage at the end: torchspy ends after", f"{waited:.0f} s, and says where the recording is")
    store.fail("")
    store.run("send")
    table.at_most("    not there after send", len(wrong(store, kept)), 0, "{:.0f}")
