"""Prints line tables of a good part of the standard library and of odd code, each as one line of JSON: first line,
table, the bytecode's length, and the ranges that Python reads in it."""
import argparse
import ast
import asyncio.base_events
import dataclasses
import decimal
import json
import textwrap
import types
import typing

ODD = '''
def far(a):
    return (a +
''' + "\n" * 500 + '''
        1)
def wide(a): return [''' + ", ".join(f"a.b{n}" for n in range(400)) + ''']
async def many(a):
    async with a as b, b as c:
        async for d in c:
            yield [await e async for e in d if e]
def matches(a):
    match a:
        case {"x": [1, *_]} | (2, 3): return 1
        case str() as b if b: pass
    try:
        del a
    except* ValueError: pass
'''
if not hasattr(types.CodeType, "co_positions"):
    # except* came with 3.11.
    ODD = ODD[:ODD.index("    try:")]

seen = []


def walk(code):
    seen.append(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            walk(constant)


walk(compile(ODD, "odd", "exec"))
for module in [argparse, ast, asyncio.base_events, dataclasses, decimal, json, textwrap, typing]:
    with open(module.__file__, encoding="utf-8") as file:
        walk(compile(file.read(), module.__file__, "exec"))
for code in seen:
    table = getattr(code, "co_linetable").hex()
    print(json.dumps([code.co_firstlineno, table, len(code.co_code), list(code.co_lines())]))
print("ready", flush=True)
