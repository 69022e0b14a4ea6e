"""Runs cells in a kernel of ipykernel's: each way to record the kernel from one of its cells, then a cell that computes until the output is there.

Leaves NAME.folded of each way in the folder. Needs ipykernel and jupyter_client, and torchspy in PATH.
usage: notebook_records_itself.py FOLDER
"""

import os
import sys
import tempfile

home = tempfile.mkdtemp(prefix="notebook")
os.environ["IPYTHONDIR"] = home
os.environ["JUPYTER_RUNTIME_DIR"] = home
os.chdir(sys.argv[1])

from jupyter_client.manager import start_new_kernel

# Long enough for a busy machine to come to the next cell.
RECORD = "torchspy record --duration 4s -o {name}.folded --pid"
# As docs/src/notebooks.md has them.
WAYS = {
    "bash": "%%bash --bg\n" + RECORD + " $PPID > {name}.log 2>&1",
    "line": "import os\npid = os.getpid()\n!nohup setsid -f " + RECORD + " {{pid}} > {name}.log 2>&1",
    "popen": "import os, subprocess\nspy = subprocess.Popen(f'" + RECORD + " {{os.getpid()}}'.split())",
}
COMPUTES = """\
import os
def compute_{name}():
    out, total = "{name}.folded", 0
    while not (os.path.exists(out) and os.path.getsize(out)):
        total += sum(range(10_000))
compute_{name}()
"""

manager, client = start_new_kernel(kernel_name="python3")


def run(cell):
    asked = client.execute(cell)
    while True:
        message = client.get_iopub_msg()
        if message["parent_header"].get("msg_id") != asked:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "error":
            sys.exit("\n".join(content["traceback"]))
        if kind == "status" and content["execution_state"] == "idle":
            break


try:
    for name, way in WAYS.items():
        run(way.format(name=name))
        run(COMPUTES.format(name=name))
    print("ready", flush=True)
    sys.stdin.read()
finally:
    manager.shutdown_kernel(now=True)
