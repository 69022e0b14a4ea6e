"""Gloo ranks of which the last one does not call a collective that the others are in; each writes its flight recorder's dump.

usage: TORCH_FR_BUFFER_SIZE=100 python -m torch.distributed.run --standalone --nproc-per-node 3 flight_ranks.py FOLDER
The dumps are FOLDER/trace_rank_N (a pickle) and FOLDER/json_rank_N.json.
"""

import os
import sys
import threading
import time

import torch
import torch.distributed as dist

LAST = 6


def called():
    """How many collectives this rank has called, as the recorder says."""
    dumped = torch._C._distributed_c10d._dump_fr_trace_json()
    return dumped.count(b"gloo:all_reduce")


def write_dumps(folder, rank, calls):
    """Once this rank has made its calls; the files of all show that all have."""
    while called() < calls:
        time.sleep(0.01)
    recorder = torch._C._distributed_c10d
    for name, content in [(f"trace_rank_{rank}", recorder._dump_fr_trace()), (f"json_rank_{rank}.json", recorder._dump_fr_trace_json())]:
        with open(os.path.join(folder, name + ".new"), "wb") as file:
            file.write(content)
        os.rename(os.path.join(folder, name + ".new"), os.path.join(folder, name))
    while not all(os.path.exists(os.path.join(folder, f"json_rank_{each}.json")) for each in range(dist.get_world_size())):
        time.sleep(0.01)
    os._exit(0)


def main():
    folder = sys.argv[1]
    dist.init_process_group("gloo")
    rank, tensor = dist.get_rank(), torch.ones(4)
    is_last = rank == dist.get_world_size() - 1
    for _ in range(LAST - 1):
        dist.all_reduce(tensor)
    writer = threading.Thread(target=write_dumps, args=(folder, rank, LAST - is_last))
    writer.start()
    if is_last:
        writer.join()
    dist.all_reduce(tensor)  # mark: the last
    writer.join()


if __name__ == "__main__":
    main()
