#!/usr/bin/env python3
"""Fails where a dependency has a licence or a source that deny.toml does not allow: what `cargo deny check licenses sources` does, without
its build and without the database of advisories."""

import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGETS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]


def may_be_used(expression, allowed):
    """Whether an SPDX expression can be fulfilled (older crates write `/` for OR)."""
    words = re.findall(r"[()]|[^\s()/]+|/", expression)
    terms = []
    for word in words:
        if word in ("AND", "OR", "(", ")"):
            terms.append(word.lower())
        elif word == "/":
            terms.append("or")
        elif word == "WITH":
            # An exception gives more rights than its licence.
            terms.append("with")
        elif terms and terms[-1] == "with":
            terms.pop()
        else:
            terms.append(str(word in allowed))
    return eval(" ".join(terms), {"__builtins__": {}})  # only True, False, and, or, ( and )


def main():
    rules = tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]
    exceptions = {each["crate"]: each["allow"] for each in rules["exceptions"]}
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    command += [word for target in TARGETS for word in ("--filter-platform", target)]
    packages = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    wrong = []
    for package in packages:
        allowed = {*rules["allow"], *exceptions.get(package["name"], [])}
        licence = package["license"]
        if licence is None or not may_be_used(licence, allowed):
            wrong.append(f"{package['name']} {package['version']}: licence {licence}")
        if package["source"] not in (None, "registry+https://github.com/rust-lang/crates.io-index"):
            wrong.append(f"{package['name']} {package['version']}: source {package['source']}")
    if wrong:
        sys.exit("error: deny.toml does not allow:\n  " + "\n  ".join(wrong))
    print(f"{len(packages)} packages have licences that deny.toml allows")


if __name__ == "__main__":
    main()
