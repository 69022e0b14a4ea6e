"""Asks torch's own debug server for stacks, as its pages do; prints each answer as JSON."""
import json
import os
import socket
import threading
import urllib.request


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
import torch.distributed as dist
from torch.distributed.debug import start_debug_server, stop_debug_server

dist.init_process_group("gloo", rank=0, world_size=1)
port = free_port()
start_debug_server(port=port)
began = threading.Event()


def rests():
    began.set()
    threading.Event().wait()


threading.Thread(target=rests, daemon=True).start()
began.wait()
answers = {}
for query in ("", "?native=1", "?subprocesses=1", "?native=1&subprocesses=1"):
    url = f"http://127.0.0.1:{port}/pyspy_dump{query}"
    # The server is a process that may still start.
    while True:
        try:
            answers[query] = urllib.request.urlopen(url).read().decode()
            break
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
print(json.dumps(answers), flush=True)
stop_debug_server()
os._exit(0)
