"""Has Ray's dashboard profile the process of the first argument, as its pages do; prints each answer as JSON."""
import asyncio
import json
import sys
import tempfile

from ray.dashboard.modules.reporter.profile_manager import CpuProfilingManager

pid = int(sys.argv[1])


async def ask():
    manager = CpuProfilingManager(tempfile.mkdtemp())
    answers = {}
    for options in ({}, {"native": True}, {"subprocesses": True}, {"native": True, "subprocesses": True}):
        answers[f"dump {sorted(options)}"] = await manager.trace_dump(pid, **options)
    for kind in ("flamegraph", "raw", "speedscope"):
        answers[kind] = await manager.cpu_profile(pid, format=kind, duration=1, native=kind == "raw")
    answers["gone"] = await manager.trace_dump(2**31 - 1)
    return answers


def text(content):
    return content.decode() if isinstance(content, bytes) else content


print(json.dumps({name: [is_right, text(content)] for name, (is_right, content) in asyncio.run(ask()).items()}))
