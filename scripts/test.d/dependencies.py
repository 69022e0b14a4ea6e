#!/usr/bin/env python3
"""Fails where Cargo.toml lists a dependency that no source names (what `cargo machete` looks for, without its build)."""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Not named by code on purpose; each with its reason.
EXCUSED = {
    "remoteprocess": "py-spy's walker: the version that it is built with (README, dependencies)",
    "reqwest": "the HTTP of object_store: with rustls, and without the provider of cryptography that it would bring",
}

unused = []
for manifest in [ROOT / "Cargo.toml", *ROOT.glob("tests/*/Cargo.toml"), *ROOT.glob("fuzz/Cargo.toml")]:
    folder = manifest.parent
    sources = [path for part in ["src", "tests", "benches", "fuzz_targets"] for path in (folder / part).rglob("*.rs")]
    text = "\n".join(path.read_text() for path in sources)
    listed = tomllib.loads(manifest.read_text())
    for table in ["dependencies", "dev-dependencies", "build-dependencies"]:
        for name in listed.get(table, {}):
            crate = name.replace("-", "_")
            if name not in EXCUSED and not re.search(rf"\b{crate}(::|\b[^\n]*;)", text):
                unused.append(f"{manifest.relative_to(ROOT)}: {name}")
if unused:
    sys.exit("error: no source names these dependencies:\n  " + "\n  ".join(unused))
