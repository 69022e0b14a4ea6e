"""Runs the queries of a page over the reductions of a job, in runs/42 of the working folder, and prints what they find.

usage: read_reductions.py duckdb|spark PAGE
A query's result is printed in lines; "--" is before each. What Spark finds is what DuckDB finds for the same query.
"""

import re
import sys


def blocks(page, language):
    with open(page, encoding="utf-8") as file:
        return re.findall(rf"```{language}\n(.*?)```", file.read(), re.DOTALL)


def main():
    engine, page = sys.argv[1:]
    if engine == "duckdb":
        import duckdb

        found = [duckdb.sql(query).fetchall() for query in blocks(page, "sql")]
    else:
        found = []
        for code in blocks(page, "python"):
            names = {}
            exec(code, names)
            found.append([tuple(row) for row in names["found"].collect()])
    for rows in found:
        print("--")
        for row in rows:
            print(*row)


if __name__ == "__main__":
    main()
