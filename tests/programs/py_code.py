"""Makes and frees code objects, one for each line of input, and says where each lies and what it is called."""
import json
import sys

for turn, _ in enumerate(sys.stdin):
    made = None
    namespace = {}
    name = f"made_{turn % 7}"
    source = "\n" * (turn % 11) + f"def {name}(value):\n" + "    value += 1\n" * (turn % 5) + "    return value\n"
    exec(compile(source, f"<turn {turn % 3}>", "exec"), namespace)
    made = namespace.pop(name).__code__
    namespace.clear()
    last = [line for _, _, line in made.co_lines()][-1]
    print(json.dumps([id(made), name, made.co_filename, made.co_firstlineno, last, len(made.co_code)]), flush=True)
