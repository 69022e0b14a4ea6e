"""Part 6: two Gloo ranks under torchrun, one made slower in Python: the fast rank's wait in the collective, whom it waits for, and
the line there, against what the ranks write down themselves.

Each rank notes the begin and end of its every all_reduce and of its every transform, on one clock. The truth of the fast
rank's share is the sum of its all_reduces over its loop; that of the slow rank's line is the part of these in which the
slow rank was in its transform. With DistributedDataParallel the all_reduce is inside of backward: there only the naming is
checked, and the transform's part of the wait is stated beside what the transforms of both ranks differ by, which is not quite
the same: all else that the ranks do takes its time as well.

Where both CPUs are busy a tick begins late, by some tenths of a millisecond, and may find asleep what ran when it was due. The fast
rank runs for 2 to 3 ms a step, just then, so that its waits come out 1 to 3 points too long on two CPUs.
"""

import json
import os
import tempfile

import profilers
from targets import PROGRAMS, Failed, torch_python

PROGRAM = os.path.join(PROGRAMS, "slow_rank.py")


def overlap(left, right):
    """Seconds that lie in a span of each; both are sorted and do not overlap themselves."""
    seconds = 0.0
    for begin, end in left:
        for other_begin, other_end in right:
            seconds += max(0.0, min(end, other_end) - max(begin, other_begin))
    return seconds


def length(spans):
    """Seconds in any span."""
    return sum(end - begin for begin, end in spans)


def line_of(mark):
    """The line of the program that carries a mark."""
    with open(PROGRAM, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.rstrip().endswith(f"# mark: {mark}"):
                return number
    raise Failed(f"no mark {mark} in {PROGRAM}")


def record(tool, python, folder, slow, steps, ddp):
    """One job: the report, and what each rank wrote."""
    output = tempfile.mkdtemp(dir=folder)
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", PROGRAM, "--output", output]
    command += ["--slow-rank", str(slow), "--steps", str(steps)] + (["--ddp"] if ddp else [])
    with tool.launch(command) as run:
        run.wait(600)
    truth = []
    for rank in range(2):
        with open(os.path.join(output, f"rank{rank}.json"), encoding="utf-8") as file:
            truth.append(json.load(file))
    return tool.report(run.recording), truth


def compare(table, tool, python, folder, slow, steps, ddp):
    """The bar's rows of one job."""
    report, truth = record(tool, python, folder, slow, steps, ddp)
    fast = 1 - slow
    wrapper = "DDP bucket" if ddp else None
    rows = [row for row in report["collectives"] if row["rank"] == fast and row["name"] == "all_reduce" and row["issuer"] == wrapper]
    name = f"{'DDP' if ddp else 'all_reduce'}, rank {slow} slow"
    if not rows:
        raise Failed(f"{name}: no all_reduce of rank {fast}")
    late = [each for row in rows for each in row["late"] if each["rank"] == slow]
    transform = [each for each in late if each["at"] and each["at"]["function"] == "slow_transform"]
    wait_s = sum(row["wait_s"] for row in rows)
    late_s, transform_s = (sum(each["seconds"] for each in group) for group in (late, transform))
    loop_s = truth[fast]["loop"][1] - truth[fast]["loop"][0]
    table.stated(f"{name}: rank {fast} waits, of its loop", f"{100 * wait_s / loop_s:.1f} %")
    if ddp:
        wanted_s = max(0.0, length(truth[slow]["transforms"]) - length(truth[fast]["transforms"]))
    else:
        host_s = sum(row["seconds"] for row in rows)
        true_s = length(truth[fast]["collectives"])
        table.at_most("    all_reduce, share off by", 100 * abs(host_s - true_s) / loop_s, 3, "{:.2f}", " points")
        wanted_s = overlap(truth[fast]["collectives"], truth[slow]["transforms"])
    off, what = 100 * (transform_s - wanted_s) / loop_s, "    of it in the slow rank's transform, off by"
    if ddp:
        table.stated(what, f"{off:+.2f} points")
    else:
        table.at_most(what, abs(off), 3, "{:.2f}", " points")
    table.at_least("    part of the wait for which the slow rank is named", 100 * late_s / wait_s if wait_s else 0.0, 80, "{:.0f} %")
    at = max(transform, key=lambda each: each["seconds"])["at"]["line"] if transform else 0
    near = line_of("transform")
    table.at_most("    its line, off by (the loop's head and its body)", min(abs(at - near), abs(at - near + 1)), 0, "{:.0f}", " lines")


def measure(table, folder, quick):
    """Collectives between ranks."""
    table.heading("6. Collectives (two Gloo ranks, one slower in Python, against the ranks' own clock)")
    python = torch_python()
    missing = "no torch environment" if python is None else profilers.torchspy_missing()
    if missing:
        table.skip("collectives", missing)
        return
    tool = profilers.TorchSpy(folder)
    for slow, ddp in ((1, True),) if quick else ((1, True), (0, True), (1, False), (0, False)):
        compare(table, tool, python, folder, slow, 40 if quick else 1000, ddp)
