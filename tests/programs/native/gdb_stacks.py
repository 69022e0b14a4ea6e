"""Run inside gdb: prints each thread and its frames, without those that are on no stack (inlined functions, tail calls)."""

import gdb

for thread in gdb.selected_inferior().threads():
    thread.switch()
    print("thread", thread.ptid[1])
    frame = gdb.newest_frame()
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            print("frame", frame.pc(), frame.name() or "??")
        frame = frame.older()
