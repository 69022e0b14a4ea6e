"""Where the program ``torchspy`` is."""

import os
import shutil
import sys
import sysconfig


def find_program() -> str:
    """The path of the program that was installed with this package, else of the one in ``PATH``.

    Raises:
        FileNotFoundError: there is neither.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    folders = [
        sysconfig.get_path("scripts"),
        # pip install --user
        sysconfig.get_path("scripts", scheme=sysconfig.get_preferred_scheme("user")) if sys.version_info >= (3, 10) else None,
        # pip install --target, --prefix
        os.path.join(os.path.dirname(here), "bin"),
        os.path.join(os.path.dirname(here), "..", "..", "..", "bin"),
    ]
    for folder in folders:
        program = os.path.join(folder, "torchspy") if folder else ""
        if os.access(program, os.X_OK):
            return os.path.normpath(program)
    program = shutil.which("torchspy")
    if program is None:
        raise FileNotFoundError("the program torchspy is not installed beside this package, and not in PATH")
    return program
