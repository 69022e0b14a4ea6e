"""Runs cells in a kernel of ipykernel's, and prints "ready PID" of the kernel once the last one waits within a function of the first.

Needs ipykernel and jupyter_client.
"""

import os
import sys
import tempfile

home = tempfile.mkdtemp(prefix="notebook")
os.environ["IPYTHONDIR"] = home
os.environ["JUPYTER_RUNTIME_DIR"] = home

from jupyter_client.manager import start_new_kernel

CELLS = [
    "import threading\ndef train(steps):\n    print('inside', flush=True)\n    threading.Event().wait()\n",
    "%time names = ['größe', '大']",
    "\n\ndef epoch():\n    train(1)\n",
    "for step in range(1):\n    epoch()",
]

manager, client = start_new_kernel(kernel_name="python3")
try:
    for cell in CELLS:
        asked = client.execute(cell)
        while True:
            message = client.get_iopub_msg()
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "error":
                sys.exit("\n".join(content["traceback"]))
            if kind == "stream" and "inside" in content["text"]:
                print("ready", manager.provisioner.pid, flush=True)
                sys.stdin.read()
                sys.exit()
            if kind == "status" and content["execution_state"] == "idle":
                break
finally:
    manager.shutdown_kernel(now=True)
