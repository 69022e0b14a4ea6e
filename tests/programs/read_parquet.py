"""Reads run.parquet and run.stacks.parquet of the working folder with DuckDB and pandas, and holds them against run.json, the report.

usage: read_parquet.py PAGE    (the page whose queries are run)
"""

import json
import re
import sys

import duckdb
import pandas
import pyarrow.parquet

report = json.load(open("run.json"))
samples = pandas.read_parquet("run.parquet")
stacks = pandas.read_parquet("run.stacks.parquet")

for name, content, rows in [("run.parquet", "samples", samples), ("run.stacks.parquet", "stacks", stacks)]:
    keys = pyarrow.parquet.read_metadata(name).metadata
    assert keys[b"torchspy.schema_version"] == b"1", keys
    assert keys[b"torchspy.rules_version"] == str(report["rules"]).encode(), keys
    assert keys[b"torchspy.content"] == content.encode(), keys
    assert len(rows) > 0, name

# Both readers, and the report, agree on the training thread's time by phase.
primary = report["processes"][report["primary"]]["pid"]
query = "SELECT phase, sum(weight_ns)::BIGINT FROM 'run.parquet' WHERE is_training_thread AND pid = ? GROUP BY phase"
by_duckdb = dict(duckdb.execute(query, [primary]).fetchall())
own = samples[samples.is_training_thread & (samples.pid == primary)]
by_pandas = own.groupby("phase", observed=True).weight_ns.sum().to_dict()
assert by_duckdb == by_pandas, (by_duckdb, by_pandas)
wall_ns = sum(by_duckdb.values())
assert abs(wall_ns / 1e9 - report["wall_s"]) < 1e-3, (wall_ns, report["wall_s"])
for phase, share in report["phases"].items():
    assert abs(by_duckdb.get(phase, 0) / wall_ns - share) < 1e-4, (phase, share, by_duckdb)
assert set(by_duckdb) <= set(report["phases"]), by_duckdb

# Waits and rows leave the time without a CPU out.
for row, share in report["summary"].items():
    of_row = own[own.summary_row == row]
    ns = (of_row.weight_ns - of_row.queue_ns).sum() + (own.queue_ns.sum() if row == "cpu_wait" else 0)
    assert abs(ns / wall_ns - share) < 0.02, (row, share, ns / wall_ns)

# Every stack is there once, its leaf last; the wall clock is that of the recording.
assert stacks.stack_id.is_unique
assert set(samples.stack_id.dropna()) == set(stacks.stack_id)
assert all(len(frames) > 0 for frames in stacks.frames)
exploded = stacks.explode("frames")
assert {"function", "file", "line", "kind"} == set(exploded.frames.iloc[0])
assert str(samples.phase.dtype) == "category", samples.phase.dtype
assert str(samples.start.dtype) == "datetime64[ns, UTC]", samples.start.dtype
started_ns = report["started_wall_ns"]
ends = samples.start.astype("int64").agg(["min", "max"]) - started_ns
assert -2e9 < ends["min"] and ends["max"] < (report["duration_s"] + 2) * 1e9, ends

queries = re.findall(r"```sql\n(.*?)```", open(sys.argv[1]).read(), re.DOTALL)
for query in queries:
    found = duckdb.sql(query).fetchall()
    has_steps = samples.step.notna().any()
    assert found or ("step" in query and not has_steps), query
    print(len(found), "rows of", query.split("\n")[0])

columns = [name for name in samples.columns if samples[name].notna().any()]
print("columns:", " ".join(columns))
