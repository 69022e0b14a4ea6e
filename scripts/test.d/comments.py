#!/usr/bin/env python3
"""Comments of Rust, TOML and the scripts' Python files end by column 100. `--wrap` wraps those that do not.

Programs of tests are left alone: labelled stacks have their line numbers. Tables, fenced code and
words that are longer than a line stay as they are.
"""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

WIDTH = 100
MARKER = {".rs": re.compile(r"( *)(///|//!|//)(?: |$)"), ".toml": re.compile(r"( *)(#)(?: |$)")}
MARKER[".py"] = MARKER[".toml"]
# What starts a paragraph of its own, and how far its further lines are set in: a list's item, or a
# name and its meaning.
ITEM = re.compile(r" *(?:[-*]|\d+\.) +| +\S+(?: \S+)? {2,}(?=\S)")
ALONE = re.compile(r" *(?:\||#|```|-{4,}|={4,}|\[\S+\]: )")


def blocks(lines, marker):
    """Runs of comment lines that have one indent and one marker: (first, past the last, what precedes the text)."""
    first = 0
    while first < len(lines):
        match = marker.match(lines[first])
        past = first + 1
        if match:
            head = match.group(1) + match.group(2)
            while past < len(lines) and (more := marker.match(lines[past])) and more.group(1) + more.group(2) == head:
                past += 1
            yield first, past, head
        first = past


def paragraphs(texts):
    """Lists of lines that are wrapped as one; those that must not be are marked."""
    found, is_code = [], False
    for text in texts:
        fence = text.lstrip().startswith("```")
        alone = is_code or fence or not text.strip() or ALONE.match(text) is not None
        is_code ^= fence
        indent = len(text) - len(text.lstrip())
        item = ITEM.match(text)
        last = found[-1] if found else None
        if alone or item or last is None or last["alone"] or indent not in last["further"]:
            hang = len(item.group()) if item else indent
            found.append({"lines": [text], "alone": alone, "indent": indent, "hang": hang, "further": {hang, indent}})
        else:
            last["lines"].append(text)
            last["hang"], last["further"] = indent, {indent}
    return found


def wrapped(paragraph, width):
    lines = paragraph["lines"]
    if paragraph["alone"] or all(len(line) <= width for line in lines):
        return lines
    text = lines[0].rstrip() + "".join(" " + line.strip() for line in lines[1:])
    # Spaces within a line are kept: those behind a name set its meaning off.
    start = max(len(ITEM.match(text).group()) if ITEM.match(text) else 0, paragraph["indent"])
    return textwrap.wrap(
        text[start:],
        width,
        initial_indent=text[:start],
        subsequent_indent=" " * paragraph["hang"],
        break_long_words=False,
        break_on_hyphens=False,
    )


def checked(path, wrap):
    """Overlong comment lines of a file, after wrapping if that is asked for."""
    lines = path.read_text().split("\n")
    new, at, overlong = [], 0, []
    for first, past, head in blocks(lines, MARKER[path.suffix]):
        new += lines[at:first]
        at = past
        block = lines[first:past]
        if any(len(line) > WIDTH for line in block):
            texts = [line[len(head) + 1 :] for line in block]
            width = WIDTH - len(head) - 1
            better = [line for part in paragraphs(texts) for line in wrapped(part, width)]
            better = [f"{head} {text}".rstrip() for text in better]
            if better != block:
                overlong.append(f"{path}:{first + 1 + next(i for i, line in enumerate(block) if len(line) > WIDTH)}")
                block = better
        new += block
    new += lines[at:]
    if wrap and new != lines:
        path.write_text("\n".join(new))
        return []
    return overlong


def main():
    listed = subprocess.run(["git", "ls-files", "*.rs", "*.toml", "scripts/*.py"], capture_output=True, text=True, check=True)
    overlong = [line for name in listed.stdout.split() for line in checked(Path(name), "--wrap" in sys.argv)]
    print("\n".join(overlong[:20]))
    sys.exit(f"{len(overlong)} comments are wider than {WIDTH} columns: scripts/test.d/comments.py --wrap" if overlong else 0)


main()
